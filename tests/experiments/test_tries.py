"""The experiment of switches: its committed settings, its rows without labels, and leads over the same dense model."""

import json
import lzma
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.experiments import tries
from thresher.experiments.experiment import Setting, experiment_named
from thresher.experiments.rows import read_rows, write_rows
from thresher.experiments.runner import read_config
from thresher.experiments.trained import command_of, resolved

ROOT = Path(__file__).parents[2] / "experiments"


def test_the_committed_settings() -> None:
    settings = read_config(ROOT / "tries")
    keys = tries.keys(settings)
    assert experiment_named("tries") is tries
    assert all(set(key) == set(tries.KEY) for key in keys)
    table1, tradeoff = (read_config(ROOT / name)["tasks"] for name in ("table1", "tradeoff"))
    for task, about in settings["tasks"].items():
        assert about["target"]["mpnet-base"] == table1[task]["target"]["mpnet-base"]
        own = {name: value for name, value in about["train"].items() if name != "minilm-l6"}
        assert own == tradeoff[task]["train"]
    assert set(settings["controls"]) | set(settings["with_more_texts"]) <= set(settings["variants"])
    for key in keys:
        assert command_of(key, settings, source="M", rows=[], out="O")
        assert key["target"] == (1.0 if key["method"] == "dense" else resolved(key, settings)["target_flops"])
        assert "more_texts" in settings["tasks"][key["task"]] or key["variant"] not in settings["with_more_texts"]
    assert next(iter(settings["variants"])) == "default"


def test_every_switch_that_means_something_without_pruning_has_a_control() -> None:
    settings = read_config(ROOT / "tries")
    only_pruning = {"method", "score", "ramp", "soft_mask", "race_end", "narrow_later", "dual_rate"}
    for variant, changed in settings["variants"].items():
        alike = variant != "default" and variant not in settings["with_more_texts"] and set(changed) <= only_pruning
        assert (variant in settings["controls"]) != alike, variant


def test_reviews_stand_beside_single_sentences(tmp_path: Path) -> None:
    review = " ".join(f"word{i}" for i in range(50))
    write_rows(tmp_path / "data" / "imdb" / "train.jsonl.xz", [{"text": review, "label": 1}, {"text": " ", "label": 0}])
    about = {"name": "SST-2", "more_texts": ["imdb"]}
    config = {"tasks": {"sst2": about}, "more_rows": {"tiny": 5}}
    setting = Setting(config, data=tmp_path / "data", work=tmp_path / "work")
    file = tries.more_texts({"task": "sst2", "model": "tiny"}, setting)
    assert read_rows(file) == [{"sentence": " ".join(f"word{i}" for i in range(20))}]


def setting_for(folder: Path) -> Setting:
    """Questions of one task for those of another; one of them is empty, as published ones may be."""
    places = runs.places(folder)
    rows = [{"question1": f"one {i}", "question2": f"two {i}" if i else " ", "label": i % 2} for i in range(40)]
    (folder / "data" / "qqp").mkdir()
    tiny.write_rows(folder / "data" / "qqp" / "train.jsonl", rows)
    about = {"target": {"tiny": 0.7}, "more_texts": ["qqp"]}
    config = runs.config("qnli", variants={"default": {}, "more": {}}, controls=["more"], with_more_texts=["more"])
    config |= {"more_rows": {"tiny": 12}, "tasks": {"qnli": {"name": "QNLI", **about}}}
    return Setting(config, **places)


def test_rows_of_every_kind_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, names = setting_for(tmp_path), runs.train_here(monkeypatch)
    keys = tries.keys(setting.config)
    assert [(key["variant"], key["method"]) for key in keys] == [
        ("default", "thresher"),
        ("more", "thresher"),
        ("more", "dense"),
    ]
    found = [tries.measure(key, setting) for key in keys]
    assert len(names) == 4 and len(set(names)) == 4, "one dense model for all of them"
    assert len({row["dense"] for row in found if row is not None}) == 1
    for key, row in zip(keys, found, strict=True):
        assert row is not None
        words = shlex.split(row["command"])
        more = words[words.index("--more-texts") + 1] if "--more-texts" in words else None
        assert more == ("runs/qqp-for-qnli-12.jsonl.xz" if key["variant"] == "more" else None)
        assert str(tmp_path) not in row["command"]
    with lzma.open(tmp_path / "work" / "qqp-for-qnli-12.jsonl.xz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert len(lines) == 12 and all(set(line) == {"question", "sentence"} for line in lines)
    assert all(line["sentence"] == line["question"].replace("one", "two") for line in lines)


def made(variant: str, score: float, *, seed: int = 0, method: str = "thresher", **more: Any) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": method, "variant": variant, "target": 0.46, "seed": seed}
    return {**row, "dense": 0.9, "pruned": score, "selection_score": score - 0.1, "relative_flops": 0.46, **more}


def test_page(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- leads -->\n<!-- end -->\n<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    config = runs.config("sst2", variants={"default": {}, "average": {}, "late": {}}, controls=["default", "average"])
    tries.publish([], tmp_path, config)
    assert page.read_text(encoding="utf-8").count("Not measured yet.") == 2
    rows = [made("default", 0.8), made("average", 0.82), made("late", 0.78), made("average", 0.9, seed=1)]
    rows += [made("default", 1.0, method="dense"), made("average", 0.84, method="dense")]
    assert tries.publish(rows, tmp_path, config) == [page]
    text = page.read_text(encoding="utf-8")
    assert "| tiny | average | 2 | +2.00 / +2.00 | +2.38 |" in text, "its own control; seed 1 has no default"
    assert "| SST2 | tiny | default | 1 | 80.00 | 0.460 |  | 100.00 | +20.00 |" in text
    assert "| SST2 | tiny | late | 1 | 78.00 | 0.460 | -2.00 / -2.00 |  | +22.00 |" in text, "the default's control"
    tries.publish([row for row in rows if (row["variant"], row["method"]) != ("average", "dense")], tmp_path, config)
    assert "| tiny | average | 2 | +2.00 / +2.00 |  |" in page.read_text(encoding="utf-8"), "nobody else's control"
    tries.publish(rows, tmp_path, config | {"first_signals": ["tiny"]})
    assert page.read_text(encoding="utf-8").count("| tiny: first signals, no evidence | average |") == 2
