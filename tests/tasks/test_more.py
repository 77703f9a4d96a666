"""Rows without labels beside a task's own: where they come from, and which are refused."""

import json
from pathlib import Path

import pytest

from thresher.errors import DataError
from thresher.tasks import Example, Task, TaskSpec
from thresher.tasks.more import with_more_texts
from thresher.tasks.ranking import RANK_METRICS

CLASSES = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy",))
PAIRS = TaskSpec("pairs", "one", "two", ("no", "yes"), ("accuracy",))


def task_of(spec: TaskSpec = CLASSES, *, pair: str | None = None, label: int | None = 1) -> Task:
    rows = [Example(f"{name} text", pair, label) for name in ("train", "selection", "test")]
    return Task(spec, rows[:1], rows[1:2], {"test": rows[2:]}, "made up")


def test_a_text_file_and_what_is_judged_by_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "more.txt"
    file.write_text("new text\ntest text\nselection text\nanother\ntrain text\n", encoding="utf-8")
    task = with_more_texts(task_of(), file)
    assert task.more == [Example(text, None, None) for text in ("new text", "another", "train text")]
    assert task.source == f"made up; 3 rows without labels from {file}, 2 selection or test rows left out"


def test_a_table_has_the_task_s_columns_and_its_labels_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"one": "a", "two": "b", "label": "nonsense"}) + "\n", encoding="utf-8")
    assert with_more_texts(task_of(PAIRS, pair="x"), file).more == [Example("a", "b", None)]
    with pytest.raises(DataError, match="has no column 'text'"):
        with_more_texts(task_of(), file)


def test_no_query_that_judges_is_learnt_from(tmp_path: Path) -> None:
    """Whatever else its rows are known by: the file has the texts alone."""
    spec = TaskSpec("s", "text", "pair", (), RANK_METRICS[:1], means="score")
    rows = [Example(f"{name} query", "document", 1.0, f"q{name}") for name in ("train", "selection", "test")]
    file = tmp_path / "more.txt"
    file.write_text("test query\tanother\nselection query\tone\nnew query\tdocument\n", encoding="utf-8")
    task = with_more_texts(Task(spec, rows[:1], rows[1:2], {"test": rows[2:]}, "made up"), file)
    assert task.more == [Example("new query", "document", None)]


def test_refusals(tmp_path: Path) -> None:
    file = tmp_path / "more.txt"
    file.write_text("selection text\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no text that is not among the selection and test rows"):
        with_more_texts(task_of(), file)
    with pytest.raises(DataError, match="has no second texts, unlike the training rows"):
        with_more_texts(task_of(PAIRS, pair="x"), file)
    embedding = TaskSpec("e", "text", None, (), ("spearman",), means="embedding")
    unlabelled = TaskSpec("s", "text", "pair", (), RANK_METRICS[:1], means="score")
    for spec in (embedding, unlabelled):
        with pytest.raises(DataError, match=f"training rows of task {spec.name} need none; put them there"):
            with_more_texts(task_of(spec, pair="x", label=None), file)
    answers = TaskSpec("q", "question", "context", (), ("f1",), means="span")
    with pytest.raises(DataError, match="those of task q are of tokens"):
        with_more_texts(task_of(answers, pair="x"), file)
