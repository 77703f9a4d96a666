"""The experiment of robustness: rows split by length, files that `prune` reads as meant, and the table."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.errors import DataError
from thresher.experiments import robustness
from thresher.experiments.experiment import Setting
from thresher.experiments.runner import RECORDS, read_config, read_records, run
from thresher.tasks import load_file_task, load_task
from thresher.tasks.encode import encode

ROOT = Path(__file__).parents[2] / "experiments" / "robustness"


def tokens(rows: Any) -> list[int]:
    return encode(tiny.tokenizer(), rows, max_length=None, positions=None).lengths


@pytest.mark.parametrize("name", ["sst2", "qnli"])
def test_rows_split_by_the_lengths_of_evaluation_rows(name: str, tmp_path: Path) -> None:
    task = load_task(name, data=runs.places(tmp_path)["data"])
    split = robustness.split_by_length(task, tiny.tokenizer())
    below, between, above = (tokens(rows) for rows in split.buckets.values())
    tested = sorted(below + between + above)
    assert tested == sorted(tokens(task.test["validation"]))
    assert max(below) < split.median <= min(between) and max(between) <= split.third_quartile < min(above)
    assert split.median == (tested[14] + tested[15]) / 2
    every = tokens(task.train + task.selection)
    short = split.train + split.selection
    assert len(short) == sum(length < split.median for length in every) < len(every) == split.of
    assert set(split.selection) <= set(task.selection) and not set(split.train) & set(task.selection)
    assert max(tokens(split.train)) < split.median


def test_the_files_are_the_task_s_rows(tmp_path: Path) -> None:
    """Pairs stay pairs, classes keep their numbers, and the rows that choose a checkpoint are short ones too."""
    task = load_task("qnli", data=runs.places(tmp_path)["data"])
    split = robustness.split_by_length(task, tiny.tokenizer())
    words = robustness.write_rows(split, tmp_path / "rows")
    assert [*words[0:6:2], *words[6:]] == ["--train", "--selection", "--test", "--pair-column", "pair"]
    read = load_file_task(words[1], selection=words[3], test=words[5], pair_column="pair")
    assert read.spec.metrics == ("accuracy",) and read.spec.labels == ("0", "1")
    assert read.selection == split.selection and set(read.train) == set(split.train)
    assert set(read.test["test"]) == set(task.test["validation"])


def test_single_texts_have_no_pair_column(tmp_path: Path) -> None:
    task = load_task("sst2", data=runs.places(tmp_path)["data"])
    words = robustness.write_rows(robustness.split_by_length(task, tiny.tokenizer()), tmp_path / "rows")
    assert len(words) == 6
    assert load_file_task(words[1], selection=words[3], test=words[5]).train[0].pair is None


def test_numbers_to_predict_have_no_accuracy(tmp_path: Path) -> None:
    folder = tmp_path / "stsb"
    folder.mkdir()
    rows = [{"sentence1": text, "sentence2": "a film", "label": 2.5} for text, _ in tiny.sentences(20)]
    for name in ("train", "validation"):
        tiny.write_rows(folder / f"{name}.jsonl", rows[:10] if name == "train" else rows[10:])
    with pytest.raises(DataError, match="task stsb is a regression"):
        robustness.split_by_length(load_task("stsb", data=tmp_path), tiny.tokenizer())


def test_a_row_has_every_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense and pruned, from one dense model; only that one stays, and no path of this machine gets into the record."""
    trained = runs.train_here(monkeypatch)
    setting = Setting(runs.config("qnli"), **runs.places(tmp_path))
    progress = run(robustness, tmp_path / "robustness", setting, command="thresher reproduce robustness")  # type: ignore[arg-type]
    assert (progress.measured, progress.left) == (2, 0)
    assert trained == ["short-dense-qnli-tiny-0", "short-qnli-tiny-lat-0.6-0", "short-qnli-tiny-thresher-0.6-0"]
    rows, dense_run = sorted(setting.work.iterdir(), reverse=True)
    assert (rows.name, runs.without_digest(dense_run.name)) == ("short-rows-qnli-tiny", "short-dense-qnli-tiny-0")
    lat, learned = read_records(tmp_path / "robustness" / RECORDS)
    for row in (learned, lat):
        assert str(tmp_path) not in json.dumps(row)
        assert list(row["buckets"]) == list(robustness.BUCKETS)
        assert sum(bucket["rows"] for bucket in row["buckets"].values()) == 30
        for bucket in row["buckets"].values():
            assert bucket["relative_flops"] == pytest.approx(bucket["gflops_pruned"] / bucket["gflops_dense"])
            assert 0 < bucket["relative_flops"] <= 1
    assert learned["counts"] is None and len(lat["counts"]) == tiny.LAYERS
    assert max(lat["counts"]) < lat["median"]  # its lengths are those of short rows
    dense = [[bucket["dense"] for bucket in row["buckets"].values()] for row in (learned, lat)]
    assert dense[0] == dense[1]


def test_a_run_that_the_deadline_stops_is_not_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "trained_run", lambda *args, **named: None)
    setting = Setting(runs.config("sst2"), **runs.places(tmp_path))
    assert robustness.measure(robustness.keys(setting.config)[0], setting) is None


def made(method: str, seed: int, scores: tuple[float, float, float], costs: tuple[float, float, float]) -> Any:
    buckets = {
        name: {
            **{"rows": 100, "tokens": 20.0, "dense": 0.9, "gflops_dense": 4.0},
            **{"pruned": score, "gflops_pruned": 4 * cost, "relative_flops": cost},
        }
        for name, score, cost in zip(robustness.BUCKETS, scores, costs, strict=True)
    }
    rows = {"short": 5250, "all": 9999}
    row = {"task": "qnli", "model": "tiny", "method": method, "target": 0.5, "seed": seed}
    return {**row, "median": 49.0, "third_quartile": 61.0, "train_rows": rows, "buckets": buckets}


def test_the_table(tmp_path: Path) -> None:
    rows = [
        made("thresher", 0, (0.89, 0.88, 0.87), (0.5, 0.5, 0.5)),
        made("thresher", 1, (0.90, 0.90, 0.90), (0.5, 0.5, 0.5)),
        made("lat", 0, (0.89, 0.86, 0.80), (0.5, 0.4, 0.3)),
        made("lat", 1, (0.89, 0.87, 0.82), (0.5, 0.4, 0.3)),
    ]
    page = tmp_path / "README.md"
    page.write_text("<!-- table -->\n<!-- end -->\n<!-- rows -->\n<!-- end -->\n", encoding="utf-8")
    robustness.publish(rows, tmp_path, read_config(ROOT))
    text = page.read_text(encoding="utf-8")
    assert "| QNLI | dense | 90.00 @ 1.000 (4.00) |" in text
    assert "| QNLI | lat | 89.00 @ 0.500 (2.00) | 86.50 @ 0.400 (1.60) | 81.00 @ 0.300 (1.20) |" in text
    gaps = "**+0.50** (+0.00, +1.00) | **+2.50** (+2.00, +3.00) | **+7.50** (+7.00, +8.00)"
    assert f"| **QNLI** | **thresher - lat** | {gaps} |" in text
    assert "| QNLI | *paper, RoBERTa-base: ltp - lat* | *+0.34* | *+3.90* | *+16.44* |" in text
    assert "| QNLI | 49 / 61 | 5,250 of 9,999 | 100 of 20.0 tokens |" in text and "SST-2" not in text


def test_the_committed_settings() -> None:
    settings = read_config(ROOT)
    assert len(robustness.keys(settings)) == 2 * 2 * 3
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"<!-- {mark} -->" in text for mark in ("table", "rows"))
