"""What a run remembers of its user's files: the rows it held out come again, and those it was trained on are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from thresher.tasks import Example, load_file_task
from thresher.tasks.remembered import rows_held_out, seen_in_training


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def films(count: int, *, start: int = 0) -> list[dict[str, Any]]:
    return [{"words": f"film {i}", "mood": ("bad", "good")[i % 2]} for i in range(start, start + count)]


COLUMNS = {"text_column": "words", "label_column": "mood"}


@pytest.mark.parametrize("with_test", [False, True])
def test_the_rows_held_out_come_again(tmp_path: Path, with_test: bool) -> None:
    train = write(tmp_path / "films.jsonl", films(100))
    test = write(tmp_path / "test.jsonl", films(7, start=200)) if with_test else None
    task = load_file_task(train, test=test, class_names=["good", "bad"], **COLUMNS)
    again = rows_held_out(json.loads(json.dumps(task.describe())))
    assert again is not None and again.test == task.test and again.spec.labels == ("good", "bad")
    assert again.train == again.selection == []


@pytest.mark.parametrize("separator", [None, "|"])
def test_several_labels_come_again_in_the_order_of_the_outputs(tmp_path: Path, separator: str | None) -> None:
    moods = [["bad"], ["good", "long"], ["long"], []]
    rows = [
        {"words": f"film {i}", "mood": moods[i % 4] if separator is None else "|".join(moods[i % 4])} for i in range(80)
    ]
    train = write(tmp_path / "films.jsonl", rows)
    names = ["long", "bad", "good"]
    task = load_file_task(train, separator=separator, class_names=names, **COLUMNS)
    again = rows_held_out(json.loads(json.dumps(task.describe())))
    assert again is not None and again.spec.labels == tuple(names) and again.test == task.test


def test_a_file_that_changed_or_is_gone_gives_no_rows(tmp_path: Path) -> None:
    train = write(tmp_path / "films.jsonl", films(100))
    about = load_file_task(train, **COLUMNS).describe()
    write(train, films(101))
    assert rows_held_out(about) is None
    train.unlink()
    assert rows_held_out(about) is None
    assert rows_held_out({}) is None and rows_held_out({"files": 3}) is None


def test_rows_of_the_training_are_known(tmp_path: Path) -> None:
    train = write(tmp_path / "films.jsonl", films(100))
    task = load_file_task(train, **COLUMNS)
    about = task.describe()
    copy = write(tmp_path / "copy.jsonl", films(100))
    (said,) = seen_in_training(about, copy, task.train)
    assert "copy.jsonl is the file that the run was trained on" in said and "without --test" in said
    other = write(tmp_path / "other.jsonl", films(3))
    rows = [*task.train[:2], task.selection[0], Example("new", None, 0)]
    (said,) = seen_in_training(about, other, rows)
    assert "3 of the 4 rows of" in said and "trained on or chosen by" in said
    assert seen_in_training(about, other, task.test["held_out"]) == []
    assert seen_in_training({"name": "sst2"}, other, rows) == []


def test_a_regression_says_that_it_is_one_and_its_range(tmp_path: Path) -> None:
    rows = [{"words": f"film {i}", "mood": i / 20} for i in range(101)]
    train = write(tmp_path / "stars.jsonl", rows)
    source = load_file_task(train, **COLUMNS).source
    assert "labels are numbers from 0 to 5" in source or "labels are numbers from 0" in source
    assert "so this is a regression (say --classes if they name classes)" in source
    told = load_file_task(train, regression=True, **COLUMNS).source
    assert "labels are numbers from 0" in told and "so this is a regression" not in told
