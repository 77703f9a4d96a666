"""The experiment on int8: three ways to measure one run, records as promised, and a page with a figure."""

from pathlib import Path
from typing import Any

import pytest

from tests.experiments import runs
from thresher.engine.backends.linear import check_int8
from thresher.errors import ConfigError
from thresher.experiments import int8
from thresher.experiments.experiment import Setting, experiment_named
from thresher.experiments.runner import RECORDS, read_config, read_records, run

ROOT = Path(__file__).parents[2] / "experiments"
PROMISED = {"task", "seed", "relative_flops", "bits", "bit_operations_ratio", "dense", "score", "way"}


def test_the_committed_settings() -> None:
    config = read_config(ROOT / "int8")
    keys = int8.keys(config)
    assert experiment_named("int8") is int8 and all(set(key) == set(int8.KEY) for key in keys)
    assert len(keys) == 3 * 3 * 5 * 4, "seeds, tasks, costs and ways"
    of_table1 = read_config(ROOT / "table1")
    assert config["train"] == of_table1["train"] and config["methods"] == of_table1["methods"]
    assert all(about["train"] == of_table1["tasks"][task]["train"] for task, about in config["tasks"].items())
    words = {task: int8.words_after({"way": "trained", "task": task}, config) for task in config["tasks"]}
    assert words == {task: ["--static-only", "--epochs", n] for task, n in zip(words, "122", strict=True)}
    control = int8.words_after({"way": "longer", "task": "qnli"}, config)
    assert control == ["--static-only", "--epochs", "2", "--unrounded"], "in all else like training in int8"
    assert int8.words_after({"way": "calibrated", "task": "sst2"}, config) == ["--static-only"]


def test_one_run_in_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_int8()
    except ConfigError as why:
        pytest.skip(str(why))
    trained = runs.train_here(monkeypatch)
    config = runs.config("sst2", targets=[0.6], quantize={"epochs": 1, "lr": 1e-3, "record": False})
    places = runs.places(tmp_path)
    progress = run(int8, tmp_path / "int8", Setting(config, **places), command="thresher reproduce int8")
    assert (progress.measured, progress.left) == (4, 0)
    assert trained == [
        "dense-sst2-tiny-0",
        "sst2-tiny-thresher-0.6-0",
        "int8-sst2-tiny-calibrated-0.6-0",
        "int8-sst2-tiny-longer-0.6-0",
        "int8-sst2-tiny-trained-0.6-0",
    ]
    rows = {row["way"]: row for row in read_records(tmp_path / "int8" / RECORDS)}
    assert all(set(row) >= PROMISED and str(tmp_path) not in str(row) for row in rows.values())
    assert len({row["dense"] for row in rows.values()}) == 1
    assert [row["bits"] for row in rows.values()] == [16, 8, 8, 8]
    assert all(row["arithmetic"] == "int8-static" and row["texts_per_second"] > 0 for row in list(rows.values())[1:])
    assert "texts_per_second" not in rows["pruned"], "trained beside others; its speed stands in the next row"
    pruned, calibrated = rows["pruned"], rows["calibrated"]
    assert calibrated["float_texts_per_second"] > 0 and calibrated["float_arithmetic"] in ("fp32", "bf16")
    assert pruned["bit_operations_ratio"] == pytest.approx(1 / pruned["relative_flops"])
    gain = calibrated["bit_operations_ratio"] * calibrated["relative_flops"]
    assert 3 < gain < 4, "attention is not in int8"
    assert rows["trained"]["command"].endswith("--static-only --epochs 1 --set lr=0.001 --set record=false")
    assert rows["longer"]["command"] == rows["trained"]["command"].replace("--epochs 1", "--epochs 1 --unrounded")
    assert rows["longer"]["fp32_score"] != rows["calibrated"]["fp32_score"] or rows["longer"]["train_seconds"] > 0
    left = {runs.without_digest(path.name) for path in places["work"].iterdir() if path.is_dir()}
    assert left == {"dense-sst2-tiny-0", "sst2-tiny-thresher-0.6-0"}, "the copies in int8 are gone"


def made(way: str, target: float, score: float, **more: Any) -> dict[str, Any]:
    ratio = (1 if way == "pruned" else 4) / target
    row = {"task": "sst2", "model": "tiny", "way": way, "target": target, "seed": 0, "dense": 0.9, "score": score}
    return {**row, "relative_flops": target, "bit_operations_ratio": ratio, **more}


def test_page(tmp_path: Path) -> None:
    marks = "".join(f"<!-- {mark} -->\n<!-- end -->\n" for mark in ("verdict", "goal", "figure", "table"))
    (tmp_path / "README.md").write_text(marks, encoding="utf-8")
    rows = [
        made("pruned", 0.5, 0.91),
        made("calibrated", 0.5, 0.89, texts_per_second=300.0, float_texts_per_second=100.0),
        made("calibrated", 0.25, 0.7),
        made("trained", 0.5, 0.9),
        made("trained", 0.5, 0.91, seed=1),
        made("trained", 0.25, 0.885),
        made("longer", 0.5, 0.895),
    ]
    config = runs.config("sst2", "qnli", targets=[0.5, 0.25])
    page, *figures = int8.publish(rows, tmp_path, config)
    text = page.read_text(encoding="utf-8")
    assert "| SST2 | 2.0x (91.00) | 8.0x (89.00) | 8.0x (89.50) | 16.0x (88.50) |" in text
    own = (
        "| SST2 | 0.5 | pruned, int8 trained on | 2 | 90.00 | 90.50 ± 0.50 | -0.6% | 0.500 | 8.0x |  | +1.00 | +0.50 |"
    )
    assert own in text
    assert "| pruned, int8 trained on | 1 | 90.00 | 88.50 | 1.7% | 0.250 | 16.0x |  | +18.50 |  |" in text
    assert "| 0.5 | pruned | 1 | 90.00 | 91.00 | -1.1% | 0.500 | 2.0x | 100 |  |  |" in text
    assert "| 0.5 | pruned, int8 calibrated | 1 | 90.00 | 89.00 | 1.1% | 0.500 | 8.0x | 300 |  |  |" in text
    assert "QNLI" not in text, "nothing is said of what was not measured"
    assert [file.name for file in figures] == ["int8.svg", "int8.png"] and all(file.is_file() for file in figures)


def test_the_goal_is_met_or_missed_with_an_interval() -> None:
    config = runs.config("sst2", targets=[0.5, 0.25])
    few = [made("trained", 0.5, 0.9)]
    assert "- SST2: **not shown**; measured are only 8.0x." in int8.goal(few, config)
    sure = [made("trained", 0.25, 0.891 + seed / 1000, seed=seed) for seed in range(3)]
    text = int8.goal([*few, *sure, made("calibrated", 0.25, 0.7)], config)
    assert (
        "- SST2: **met**; pruned, int8 trained on, 16.0x fewer bit operations, 0.89% lost (95% interval 0.61%" in text
    )
    unsure = [made("trained", 0.25, 0.87 + seed / 50, seed=seed) for seed in range(3)]
    assert "**met by the mean, not by its interval**" in int8.goal(unsure, config)
    assert "**missed**; pruned, int8 calibrated" in int8.goal([made("calibrated", 0.25, 0.7)], config)
    assert "(one seed)" in int8.goal([made("calibrated", 0.25, 0.7)], config)
