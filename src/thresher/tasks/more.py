"""Rows without labels beside a task's own: training learns from the dense model alone on them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from thresher.core.heads import OF_TOKENS
from thresher.errors import DataError
from thresher.tasks.files import read_texts, text_at
from thresher.tasks.readers import read_table
from thresher.tasks.splits import counted, fingerprint
from thresher.tasks.task import Example, Task, labelled


def with_more_texts(task: Task, file: Path) -> Task:
    """The task with a file's texts beside its training rows. A .txt has one text a line, with a tab before a second
    one; every other file the task's columns of text, of which labels are not read.

    Texts that are also selection or test rows are left out: what the teacher says of those is for nobody to learn.
    """
    spec = task.spec
    check_beside(task)
    rows = read_texts(file) if file.suffix.lower() == ".txt" else _by_columns(file, spec.text_column, spec.pair_column)
    paired = task.train[0].pair is not None
    if (rows[0].pair is not None) != paired:
        raise DataError(f"{file} has {'no ' if paired else ''}second texts, unlike the training rows; make them alike")
    # Queries by their text: those of the file have no other identity.
    key: Callable[[Example], object] = (lambda row: row.text) if spec.means == "score" else fingerprint
    judged = {key(row) for split in (task.selection, *task.test.values()) for row in split}
    fresh = [Example(row.text, row.pair, None) for row in rows if key(row) not in judged]
    if not fresh:
        raise DataError(f"{file} has no text that is not among the selection and test rows; give others")
    gone = f", {counted(len(rows) - len(fresh), 'selection or test row')} left out" if len(fresh) < len(rows) else ""
    said = f"{counted(len(fresh), 'row')} without labels from {file}{gone}"
    return replace(task, more=fresh, source=f"{task.source}; {said}")


def check_beside(task: Task) -> None:
    """Refuse a task whose rows learn from the dense model alone anyway, or whose labels are of tokens."""
    means, name = task.spec.means, task.spec.name
    if means in OF_TOKENS:
        raise DataError(f"more texts are for labels of whole texts, and those of task {name} are of tokens")
    if means == "embedding" or not labelled(task.train, name=name):
        raise DataError(
            f"more texts go beside rows with labels, and the training rows of task {name} need none; put them there"
        )


def _by_columns(file: Path, text: str, pair: str | None) -> list[Example]:
    table = read_table(file)
    for name in (text, pair):
        if name is not None:
            table.require(name)
    return [
        Example(text_at(table, row, text), None if pair is None else text_at(table, row, pair), None)
        for row in range(len(table.rows))
    ]
