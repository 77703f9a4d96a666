"""Several labels a row, rerankers and embeddings from the user's own files."""

import json
from pathlib import Path
from typing import Any

import pytest

from thresher.errors import DataError
from thresher.tasks import load_file_task, load_test_file
from thresher.tasks.splits import query_of


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def labelled_rows(*labels: Any, count: int = 40) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": labels[i % len(labels)]} for i in range(count)]


def pair_rows(queries: int = 20, documents: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [{"query": f"query {q}", "doc": f"doc {q} {d}", **more} for q in range(queries) for d in range(documents)]


RERANK: dict[str, Any] = {"means": "score", "text_column": "query", "pair_column": "doc"}


def test_lists_are_several_labels(tmp_path: Path) -> None:
    task = load_file_task(write(tmp_path / "t.jsonl", labelled_rows(["b", "a"], [], ["b"], ["c"])))
    assert (task.spec.means, task.spec.labels, task.spec.separator) == ("labels", ("a", "b", "c"), None)
    assert {row.label for row in task.train} == {(1, 1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 1)}
    assert task.source.endswith("labels a, b, c")
    test = write(tmp_path / "test.jsonl", labelled_rows(["c"], count=2))
    again = load_test_file(
        test, text_column="text", pair_column=None, label_column="label", labels=("a", "b", "c"), means="labels"
    )
    assert again.spec.means == "labels" and again.test["test"][0].label == (0, 0, 1)


@pytest.mark.parametrize("separator", [None, "|"])
def test_numbers_are_in_their_own_order(tmp_path: Path, separator: str | None) -> None:
    """A model's outputs are numbered like that: by the alphabet, label 10 would be trained, and scored, as output 2."""
    labels: list[Any] = [[number, 0] if separator is None else f"{number}|0" for number in range(1, 12)]
    spec = load_file_task(write(tmp_path / "t.jsonl", labelled_rows(*labels)), separator=separator).spec
    assert spec.labels == tuple(map(str, range(12))) and spec.class_order == "task"
    words = load_file_task(write(tmp_path / "w.jsonl", labelled_rows(["10", "2"], ["b"]))).spec
    assert words.labels == ("10", "2", "b") and words.class_order == "alphabet"


def test_a_label_is_more_than_spaces(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2 .*has ' ' in its list; labels must be names or whole numbers"):
        load_file_task(write(tmp_path / "t.jsonl", labelled_rows(["a", "b"], ["b", " "])))


def test_text_with_a_separator(tmp_path: Path) -> None:
    task = load_file_task(write(tmp_path / "t.jsonl", labelled_rows("a | b", "b", "", "c|a")), separator="|")
    assert (task.spec.labels, task.spec.separator) == (("a", "b", "c"), "|")
    assert {row.label for row in task.train} == {(1, 1, 0), (0, 1, 0), (0, 0, 0), (1, 0, 1)}
    with pytest.raises(DataError, match="row 1 .*label 'd' is none of the labels in training: a, b, c"):
        load_file_task(
            tmp_path / "t.jsonl", test=write(tmp_path / "test.jsonl", labelled_rows("d", count=1)), separator="|"
        )


@pytest.mark.parametrize(
    ("labels", "mark"), [(("a|b", "a", "c"), "|"), (("a,b", "b,c"), ","), (("x; y", "y", "z"), ";")]
)
def test_labels_that_may_be_several_ask(tmp_path: Path, labels: tuple[str, ...], mark: str) -> None:
    file = write(tmp_path / "t.jsonl", labelled_rows(*labels))
    with pytest.raises(DataError) as error:
        load_file_task(file)
    assert f"--separator '{mark}' (separator='{mark}')" in str(error.value)
    assert "if each is one class, say --classes (regression=False)" in str(error.value)
    assert load_file_task(file, regression=False).spec.labels == tuple(sorted(labels))
    assert load_file_task(file, separator=mark).spec.means == "labels"


def test_rows_without_a_label_ask_too(tmp_path: Path) -> None:
    """To remove them would be wrong where others have several: none of the labels is an answer, too."""
    with pytest.raises(DataError, match=r"if these are several labels, say --separator '\|'"):
        load_file_task(write(tmp_path / "t.jsonl", labelled_rows("", "a|b", "b")))
    with pytest.raises(DataError, match="row 1 .*has no label in 'label'; give it one or remove the row"):
        load_file_task(write(tmp_path / "u.jsonl", labelled_rows("", "a", "b")))


def test_names_with_commas_and_nothing_in_common_are_classes(tmp_path: Path) -> None:
    task = load_file_task(write(tmp_path / "t.jsonl", labelled_rows("food, drink", "sports, games", "news")))
    assert task.spec.labels == ("food, drink", "news", "sports, games")


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ((["a"], "b"), {}, r"row 2 \(line 2\): the label in 'label' is a str; it must be a list of labels"),
        ((["a"], None), {}, r"row 2 \(line 2\) has no label in 'label'; give it an empty list"),
        ((["a", 1.5], ["b"]), {}, "has 1.5 in its list; labels must be names or whole numbers"),
        ((["a"], []), {}, "'label' has 1 different labels; at least two are needed"),
        ((3, "a"), {"separator": "|"}, r"row 1 .* is a int; it must be text with '\|' between labels"),
        (("a", "b"), {"separator": ""}, "the separator is empty"),
        (("a", "b"), {"separator": "|", "regression": False}, "says that rows have several labels; leave out"),
        (("a", "b"), {"means": "classes"}, "means = 'classes' is none of labels, score, embedding, span and tags"),
        (("a", "b"), {"means": "score"}, "name the document's column with --pair-column"),
        (
            ("a", "b"),
            {"means": "embedding", "separator": "|"},
            r"embeddings \(--embed\), answers and tags have none; leave it",
        ),
        (("a", "b"), {"group_column": "label"}, "--group-column 'label' names a reranker's queries"),
        (("a", "b"), {"means": "embedding", "pair_column": "second"}, "no file has the column 'second'"),
        (("a", "b"), {"means": "embedding", "label_column": "near"}, r"no file has the column 'near' together with"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, labels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_file_task(write(tmp_path / "t.jsonl", labelled_rows(*labels)), **options)


def test_pairs_without_labels_stay_together_by_query(tmp_path: Path) -> None:
    task = load_file_task(write(tmp_path / "t.jsonl", pair_rows()), **RERANK)
    assert task.spec.means == "score" and task.spec.metrics == ("ndcg@10",)
    assert all(row.label is None for row in task.train)
    parts = [{query_of(row) for row in part} for part in (task.train, task.selection, task.test["held_out"])]
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts)) == 20
    assert len(task.train) + len(task.selection) + len(task.test["held_out"]) == 80


def test_groups_are_queries_where_they_are_named(tmp_path: Path) -> None:
    rows = [{**row, "id": i // 8} for i, row in enumerate(pair_rows())]
    task = load_file_task(write(tmp_path / "t.jsonl", rows), **RERANK, group_column="id")
    assert {row.group for row in task.train} < {str(i) for i in range(10)}
    parts = [{row.group for row in part} for part in (task.train, task.selection, task.test["held_out"])]
    assert sum(map(len, parts)) == 10
    with pytest.raises(DataError, match=r"row 1 .*'id' is None; it must be a name or a whole number"):
        load_file_task(write(tmp_path / "t.jsonl", [{**rows[0], "id": None}, *rows]), **RERANK, group_column="id")


def test_labels_are_read_in_the_files_that_have_them(tmp_path: Path) -> None:
    train = write(tmp_path / "t.jsonl", pair_rows())
    test = write(tmp_path / "test.jsonl", [{"query": "new", "doc": f"d{i}", "label": i} for i in range(3)])
    task = load_file_task(train, test=test, **RERANK)
    assert task.train[0].label is None and [row.label for row in task.test["test"]] == [0.0, 1.0, 2.0]
    bad = write(tmp_path / "bad.jsonl", [{"query": "new", "doc": "d", "label": -1}])
    with pytest.raises(DataError, match="row 1 .*relevance -1 is below 0"):
        load_file_task(train, test=bad, **RERANK)
    words = write(tmp_path / "words.jsonl", [{"query": "new", "doc": "d", "label": "good"}])
    with pytest.raises(DataError, match="label 'good' is not a number, as a document's relevance is: 0, or more"):
        load_file_task(train, test=words, **RERANK)
    with pytest.raises(DataError, match="no file has the column 'useful'; name another, or leave --label-column out"):
        load_file_task(train, **RERANK, label_column="useful")
    with pytest.raises(DataError, match="too few different queries to split"):
        load_file_task(write(tmp_path / "few.jsonl", pair_rows(2)), **RERANK)


def test_texts_alone_and_pairs_to_test_on(tmp_path: Path) -> None:
    """A class label of the training texts means nothing here."""
    train = write(tmp_path / "t.jsonl", labelled_rows("a", "b"))
    test = write(tmp_path / "test.jsonl", [{"text": "x", "second": "y", "label": 3.5}])
    task = load_file_task(train, test=test, means="embedding", pair_column="second")
    assert task.train[0].label is None and task.train[0].pair is None
    assert (task.test["test"][0].pair, task.test["test"][0].label) == ("y", 3.5)
    alone = load_file_task(train, means="embedding")
    assert len(alone.train) + len(alone.selection) + len(alone.test["held_out"]) == 40
