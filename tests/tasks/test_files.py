import json
from pathlib import Path
from typing import Any

import pytest

from thresher.errors import DataError, ThresherError
from thresher.tasks import Task, load_file_task, load_test_file
from thresher.tasks.files import read_texts
from thresher.tasks.splits import fingerprint


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def films(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"film {i}", "label": ("bad", "good")[i % 2], **more} for i in range(count)]


def load(train: Path, test: Path | None = None, **options: Any) -> Task:
    return load_file_task(train, **{"test": test, "text_column": "text", "label_column": "label", **options})


def keys(task: Task) -> list[set[bytes]]:
    return [{fingerprint(row) for row in part} for part in (task.train, task.selection, *task.test.values())]


def test_one_file_is_split_three_ways(tmp_path: Path) -> None:
    task = load(write(tmp_path / "films.jsonl", films(100)))
    assert (len(task.train), len(task.selection), len(task.test["held_out"])) == (81, 9, 10)
    assert sum(map(len, keys(task))) == len(set.union(*keys(task))) == 100
    assert task.spec.name == "films"
    assert (task.spec.labels, task.spec.metrics) == (("bad", "good"), ("accuracy",))
    assert "100 rows, 9 of them for selection; 10 rows held out by hash as test" in task.source
    turned = load(write(tmp_path / "turned.jsonl", films(100)[::-1]))
    assert keys(turned) == keys(task)


def test_the_users_order_of_classes(tmp_path: Path) -> None:
    file = write(tmp_path / "films.jsonl", films(100))
    plain, told = load(file), load(file, class_names=["good", "bad", "mixed"])
    assert (plain.spec.labels, plain.spec.class_order) == (("bad", "good"), "alphabet")
    assert (told.spec.labels, told.spec.class_order) == (("good", "bad", "mixed"), "user")
    assert [row.label for row in told.train] == [1 - row.label for row in plain.train]
    numbers = [{"text": f"film {i}", "label": i % 2} for i in range(50)]
    assert load(write(tmp_path / "numbers.jsonl", numbers)).spec.class_order == "task"  # 0 is class 0


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["good", "awful"], "has the labels bad, good, but the classes are good, awful; name all of them"),
        (["good", "good"], "must be two or more different names"),
        (["good", ""], "must be two or more different names"),
        ("good,bad", "must be two or more different names"),
    ],
)
def test_bad_class_names(tmp_path: Path, names: Any, text: str) -> None:
    with pytest.raises(ThresherError, match=text):
        load(write(tmp_path / "films.jsonl", films(50)), class_names=names)
    with pytest.raises(ThresherError, match="are numbers to predict; leave the names out"):
        rows = [{"text": f"film {i}", "label": i + 0.5} for i in range(50)]
        load(write(tmp_path / "numbers.jsonl", rows), class_names=["good", "bad"])


def test_two_files_and_their_overlap(tmp_path: Path) -> None:
    test = films(3) + [{"text": "new", "label": "good"}]
    task = load(write(tmp_path / "films.jsonl", films(50)), write(tmp_path / "test.jsonl", test))
    assert [(row.text, row.label) for row in task.test["test"]] == [
        ("film 0", 0),
        ("film 1", 1),
        ("film 2", 0),
        ("new", 1),
    ]
    assert len(task.train) + len(task.selection) == 50
    assert not keys(task)[1] & keys(task)[2]
    assert task.source.endswith(
        "test.jsonl; classes bad, good; 3 training rows also occur in the test rows and stay in training"
    )


def test_csv_with_pairs_and_regression(tmp_path: Path) -> None:
    path = tmp_path / "stars.csv"
    path.write_text("title,review,stars\n" + "".join(f"t{i},r{i},{i / 4}\n" for i in range(20)), encoding="utf-8")
    task = load(path, text_column="title", pair_column="review", label_column="stars")
    assert task.spec.regression and task.spec.metrics == ("pearson", "spearman")
    rows = sorted([*task.train, *task.selection, *task.test["held_out"]], key=lambda row: row.label)
    assert [(row.text, row.pair, row.label) for row in rows] == [(f"t{i}", f"r{i}", i / 4) for i in range(20)]
    assert all(isinstance(row.label, float) for row in rows)


def test_parquet_task(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(films(20)), tmp_path / "films.parquet")
    assert load(tmp_path / "films.parquet").spec.labels == ("bad", "good")
    parquet.write_table(pyarrow.table({"text": [1, 2], "label": ["a", "b"]}), tmp_path / "films.parquet")
    with pytest.raises(DataError, match=r"films.parquet, row 1: 'text' is of type int"):
        load(tmp_path / "films.parquet")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "", "label": "bad"}, r"row 21 \(line 21\): 'text' is empty; give it text or remove the row"),
        ({"text": " \u200b\x00", "label": "bad"}, r"row 21 \(line 21\): 'text' is empty"),
        ({"text": None, "label": "bad"}, r"row 21 \(line 21\): 'text' is empty"),
        ({"text": 7, "label": "bad"}, r"row 21 \(line 21\): 'text' is of type int; it must be text"),
        ({"text": ["a"], "label": "bad"}, r"row 21 .*'text' is of type list"),
        ({"text": "\ud83d", "label": "bad"}, r"row 21 \(line 21\): 'text' has \\ud83d, half a character"),
        ({"label": "bad"}, r"row 21 \(line 21\) has no 'text'; it has: label"),
        ({"text": "a"}, r"row 21 \(line 21\) has no 'label'; it has: text"),
        ({"text": "a", "label": None}, r"row 21 \(line 21\) has no label in 'label'"),
    ],
)
def test_bad_rows_are_named_in_both_files(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    bad = write(tmp_path / "bad.jsonl", [*films(20), row])
    with pytest.raises(DataError, match="bad.jsonl, " + message):
        load(bad)
    with pytest.raises(DataError, match="bad.jsonl, " + message):
        load(write(tmp_path / "good.jsonl", films(20)), bad)


def test_unknown_column_lists_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "films.jsonl", films(20))
    known = "films.jsonl has no column 'review'; available columns: 'text', 'label'; say which with"
    for kind in ("text", "pair", "label"):
        with pytest.raises(DataError, match=f"{known} --{kind}-column"):
            load(path, **{f"{kind}_column": "review"})
    with pytest.raises(DataError, match="column 'text' is given twice"):
        load(path, pair_column="text")


def test_test_label_unknown_to_train(tmp_path: Path) -> None:
    test = write(tmp_path / "test.jsonl", [{"text": "a", "label": "odd"}])
    with pytest.raises(
        DataError, match=r"test.jsonl, row 1 \(line 1\): label 'odd' is none of the classes.*: bad, good"
    ):
        load(write(tmp_path / "films.jsonl", films(20)), test)


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (("01", "02"), ("01", "02")),  # codes, not numbers
        (("-1", "10", "9"), ("-1", "10", "9")),
        (("0", "1"), ("0.0", "+1")),  # numbers, however a test file writes them
    ],
)
def test_classes_mean_the_same_in_training_and_later(
    names: tuple[str, ...], written: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [{"text": f"film {i}", "label": names[i % len(names)]} for i in range(60)]
    labels = load(write(tmp_path / "films.jsonl", rows)).spec.labels
    assert set(labels) == set(names)
    test = write(tmp_path / "test.jsonl", [{"text": "a", "label": label} for label in written])
    found = load_test_file(test, text_column="text", pair_column=None, label_column="label", labels=labels)
    assert [labels[int(row.label)] for row in found.test["test"]] == list(names)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (films(1), "every label in 'label' is 'bad'"),
        (films(2), "too few different rows to split; it needs at least three different rows"),
        ([{"text": "same", "label": label} for label in "ab"], "too few different rows"),
        (films(3), "only one label left in its 1 training rows after the split"),
    ],
)
def test_too_little_to_split(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(write(tmp_path / "films.jsonl", rows))


def test_training_file_given_as_test_file(tmp_path: Path) -> None:
    path = write(tmp_path / "films.jsonl", films(20))
    with pytest.raises(DataError, match="at least two different rows that are not test rows"):
        load(path, path)


def test_selection_rows_from_a_file_of_their_own(tmp_path: Path) -> None:
    """Training rows among them are not trained on, and test rows may not choose."""
    train = write(tmp_path / "films.jsonl", films(50))
    selection = write(tmp_path / "selection.jsonl", [*films(4), {"text": "new", "label": "good"}])
    test = write(tmp_path / "test.jsonl", [{"text": f"seen {i}", "label": "bad"} for i in range(3)])
    task = load(train, test, selection=selection)
    assert [row.text for row in task.selection] == ["film 0", "film 1", "film 2", "film 3", "new"]
    assert {row.text for row in task.train} == {f"film {i}" for i in range(4, 50)}
    assert f"50 rows, 5 rows for selection from {selection}; 3 test rows from {test}" in task.source
    alone = load(train, selection=selection)
    assert (len(alone.train), len(alone.selection), len(alone.test["held_out"])) == (41, 5, 5)
    with pytest.raises(DataError, match=r"test.jsonl and the test rows have 3 rows in common"):
        load(train, test, selection=test)
    with pytest.raises(DataError, match="label 'awful' is none of the classes in training"):
        load(train, test, selection=write(tmp_path / "bad.jsonl", [{"text": "new", "label": "awful"}]))


@pytest.mark.parametrize(
    ("line", "which"),
    [("film\t", "second text"), ("\tbad film", "first text"), ("film\t\u200b", "second text"), ("\u200b", "text")],
)
def test_texts_without_words_are_refused_by_line(tmp_path: Path, line: str, which: str) -> None:
    good = "good film\tbad film" if "\t" in line else "good film"
    file = tmp_path / "texts.txt"
    file.write_text(f"{good}\n\n  \n{line}\n{good}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"texts.txt, line 4: the {which} is empty; give it words or remove the line"):
        read_texts(file)
    file.write_text(f"{good}\n\n  \n{good}\n", encoding="utf-8")
    assert len(read_texts(file)) == 2
