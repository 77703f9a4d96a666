"""Rows of question answering: a question, its context, and where in it the answers are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from thresher.errors import DataError
from thresher.tasks.readers import Table
from thresher.tasks.task import Example
from thresher.tasks.truth import Answers
from thresher.text import half_character, is_blank, shown

TITLE = "title"  # SQuAD's column of the article, by which rows are split


@dataclass(frozen=True)
class QuestionColumns:
    """Names of the columns. Rows of one `group` stay on one side of every split: an article, or else a context."""

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    group: str | None = None


def question_rows(table: Table, columns: QuestionColumns) -> list[Example]:
    """All rows of a file; answers are read in files that have such a column, where no answer is an empty list."""
    for name in (columns.question, columns.context, *([columns.group] if columns.group else [])):
        table.require(name)
    has = columns.answers in table.columns
    group = columns.group or (TITLE if TITLE in table.columns else None)
    rows = []
    for row in range(len(table.rows)):
        context = _text(table, row, columns.context, empty=True)
        rows.append(
            Example(
                text=_text(table, row, columns.question, empty=False),
                pair=context,
                label=_answers(table, row, columns.answers, context) if has else None,
                group=context if group is None else str(table.value(row, group)),
            )
        )
    return rows


def without_misplaced(table: Table) -> tuple[Table, int, int]:
    """A published file without the answers that are not where it says, and without the questions that had no other;
    how many of each. Some copies of SQuAD's relatives have hundreds."""
    rows, lost, questions = [], 0, 0
    for row in table.rows:
        given = list(_pairs(row["answers"]))
        right = [(text, start) for text, start in given if start is None or _is_at(row["context"], text, start)]
        lost += len(given) - len(right)
        if given and not right:
            questions += 1
            continue
        rows.append({**row, "answers": [{"text": text, "answer_start": start} for text, start in right]})
    return Table(table.path, table.columns, rows, None), lost, questions


def _answers(table: Table, row: int, column: str, context: str) -> Answers:
    """A row's answers, each at its place; one without a place is looked for in the context."""
    where = f"{table.where(row)}: '{column}'"
    texts, starts = [], []
    try:
        given = list(_pairs(table.value(row, column)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where} is {shown(table.value(row, column))}; it must be a text, a list of texts, or SQuAD's objects "
            "with text and answer_start, and an empty list where there is no answer"
        ) from error
    for text, start in given:
        if is_blank(text):
            raise DataError(f"{where} has an empty answer; give an empty list where there is none")
        place = context.find(text) if start is None else start
        if place < 0 or not _is_at(context, text, place):
            at = "" if start is None else f" at character {start}"
            raise DataError(f"{where}: {shown(text)} is not in the context{at}; an answer is a piece of its context")
        texts.append(text)
        starts.append(place)
    return Answers(tuple(texts), tuple(starts))


def _pairs(value: Any) -> Iterable[tuple[str, int | None]]:
    """Text and start, None where nothing says it, of all the forms that answers are written in."""
    if value is None:
        return
    if isinstance(value, dict):  # as the hub has it: two lists
        texts, starts = value["text"], value.get("answer_start")
        value = [{"text": t, "answer_start": s} for t, s in zip(texts, starts or [None] * len(texts), strict=True)]
    for one in [value] if isinstance(value, str) else value:
        text, start = (one, None) if isinstance(one, str) else (one["text"], one.get("answer_start"))
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int | None):
            raise TypeError(f"text = {text!r}, answer_start = {start!r}")
        yield text, start


def _is_at(context: str, text: str, start: int) -> bool:
    return start >= 0 and context[start : start + len(text)] == text


def _text(table: Table, row: int, column: str, *, empty: bool) -> str:
    value = table.value(row, column)
    where = f"{table.where(row)}: '{column}'"
    if not isinstance(value, str):
        raise DataError(f"{where} is of type {type(value).__name__}; it must be text, written as a string")
    if not empty and is_blank(value):
        raise DataError(f"{where} is empty; give it text or remove the row")
    if (bad := half_character(value)) is not None:
        raise DataError(f"{where} has {bad}, half a character that no tokenizer can read; remove it")
    return value
