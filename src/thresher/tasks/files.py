"""A task from the user's own files."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import DataError
from thresher.tasks.class_order import in_order, order_of
from thresher.tasks.labels import Labels, learn_labels, listed
from thresher.tasks.metrics import REGRESSION_METRICS
from thresher.tasks.readers import Table, half_character, is_blank, read_table
from thresher.tasks.splits import (
    SELECTION_AT_MOST,
    SELECTION_SHARE,
    counted,
    fingerprint,
    hold_out,
    hold_out_selection,
    leak_note,
)
from thresher.tasks.task import Example, Task, TaskSpec


@dataclass(frozen=True)
class Columns:
    """The names of the columns to read."""

    text: str
    pair: str | None
    label: str

    def __post_init__(self) -> None:
        names = self.names()
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"column '{name}' is given twice; text, pair and label must be different columns")

    def names(self) -> list[str]:
        return [name for name in (self.text, self.pair, self.label) if name is not None]

    def read(self, path: Path) -> Table:
        table = read_table(path)
        for name in self.names():
            table.require(name)
        return table

    def examples(self, table: Table, labels: Labels) -> list[Example]:
        numbers = labels.read(table, self.label)
        return [
            Example(
                text=_text(table, row, self.text),
                pair=None if self.pair is None else _text(table, row, self.pair),
                label=numbers[row],
            )
            for row in range(len(table.rows))
        ]


def load_file_task(
    train: str | Path,
    *,
    test: str | Path | None = None,
    selection: str | Path | None = None,
    text_column: str = "text",
    pair_column: str | None = None,
    label_column: str = "label",
    regression: bool | None = None,
    class_names: Sequence[str] | None = None,
) -> Task:
    """Read training rows, and test rows from `test` or from a tenth of the training rows chosen by their hash.

    Rows that choose checkpoints and settings are a tenth of the rest, or those of `selection`; training rows that are
    among them are left out.
    `regression=None` decides by the labels: fractions are numbers to predict, everything else names classes.
    `class_names` are the classes in the order of the model's outputs; without them words are in alphabetical order, and
    a model whose classes have other names, or none, is refused.
    """
    train, test, chosen_by = Path(train), *(None if file is None else Path(file) for file in (test, selection))
    columns = Columns(text_column, pair_column, label_column)
    table = columns.read(train)
    labels = in_order(learn_labels(table, label_column, regression=regression), class_names, where=train)
    chosen = [] if chosen_by is None else columns.examples(columns.read(chosen_by), labels)
    rows = columns.examples(table, labels)
    rows = _without(rows, chosen) if chosen else rows
    if test is None:
        rows, held = hold_out(rows, share=SELECTION_SHARE, at_most=SELECTION_AT_MOST)
        tests = {"held_out": held}
        tested = f"{len(held):,} rows held out by hash as test"
    else:
        tests = {"test": columns.examples(columns.read(test), labels)}
        tested = f"{len(tests['test']):,} test rows from {test}"
    if chosen_by is None:
        kept, chosen, leaked = hold_out_selection(rows, tests.values())
        choosing = f"{len(chosen):,} of them for selection"
    else:
        (reported,) = tests.values()
        both = len(chosen) - len(_without(chosen, reported))
        if both:
            rule = "what chooses the model must not test it"
            raise DataError(f"{chosen_by} and the test rows have {counted(both, 'row')} in common; {rule}")
        kept, leaked = rows, len(rows) - len(_without(rows, reported))
        choosing = f"{len(chosen):,} rows for selection from {chosen_by}"
    _check_enough(train, kept=kept, selection=chosen, alone=test is None)
    spec = TaskSpec(
        name=train.name.split(".")[0],
        text_column=text_column,
        pair_column=pair_column,
        labels=labels.names,
        metrics=("accuracy",) if labels.names else REGRESSION_METRICS,
        label_column=label_column,
        class_order=order_of(labels, class_names),
    )
    classes = f"; classes {listed(labels.names)}" if labels.names else _range_of(kept, decided=regression is None)
    source = f"{train}: {len(table.rows):,} rows, {choosing}; {tested}{classes}{leak_note(leaked)}"
    given = {"train": train, "test": test, "selection": chosen_by}
    files = {name: {"path": str(path), "sha256": digest_of(path)} for name, path in given.items() if path is not None}
    return Task(spec, kept, chosen, tests, source, files=files)


def digest_of(file: Path) -> str:
    """By which a file is known again, wherever it lies."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _range_of(rows: list[Example], *, decided: bool) -> str:
    """What numbers there are to predict, and whether that they are to be predicted was `decided` by looking at them."""
    numbers = [row.label for row in rows]
    why = "; they have fractions, so this is a regression (say --classes if they name classes)" if decided else ""
    return f"; labels are numbers from {min(numbers):g} to {max(numbers):g}{why}"


def load_test_file(
    test: Path, *, text_column: str, pair_column: str | None, label_column: str, labels: tuple[str, ...]
) -> Task:
    """Rows to evaluate a finished model on, with the class names it was trained with (none for regression)."""
    columns = Columns(text_column, pair_column, label_column)
    whole = bool(labels) and all(map(_is_whole, labels))
    rows = columns.examples(columns.read(test), Labels(labels, whole=whole))
    spec = TaskSpec(
        name=test.name.split(".")[0],
        text_column=text_column,
        pair_column=pair_column,
        labels=labels,
        metrics=("accuracy",) if labels else REGRESSION_METRICS,
    )
    return Task(spec, [], [], {"test": rows}, f"{test}: {len(rows):,} rows")


def _without(rows: list[Example], others: list[Example]) -> list[Example]:
    gone = {fingerprint(row) for row in others}
    return [row for row in rows if fingerprint(row) not in gone]


def _is_whole(name: str) -> bool:
    """Whether training took the class for a number: it then wrote '7', and never '07', which stays a name."""
    try:
        return str(int(name)) == name
    except ValueError:
        return False


def _text(table: Table, row: int, column: str) -> str:
    value: Any = table.value(row, column)
    where = f"{table.where(row)}: '{column}'"
    if value is None or (isinstance(value, str) and is_blank(value)):
        raise DataError(f"{where} is empty; give it text or remove the row")
    if not isinstance(value, str):
        raise DataError(f"{where} is of type {type(value).__name__}; it must be text, written as a string")
    bad = half_character(value)
    if bad is not None:
        raise DataError(f"{where} has {bad}, half a character that no tokenizer can read; remove it")
    return value


def _check_enough(path: Path, *, kept: list[Example], selection: list[Example], alone: bool) -> None:
    needed = "three different rows (train, selection, test)" if alone else "two different rows that are not test rows"
    if not kept or not selection:
        raise DataError(f"{path} has too few different rows to split; it needs at least {needed}")
    if len({row.label for row in kept}) == 1:
        raise DataError(
            f"{path} has only one label left in its {len(kept)} training rows after the split; add rows of other labels"
        )


TABLES = (".csv", ".jsonl", ".json", ".parquet")  # not .tsv: a text, a tab and a second text are what read_texts takes


def read_texts(file: Path) -> list[Example]:
    """Texts without labels, one per line; a tab stands before a second text. Their label is 0 and means nothing.

    Empty lines count for nothing; half a pair, or a line with invisible characters only, is an error.
    """
    if not file.is_file():
        raise DataError(f"{file} does not exist; give a text file with one text per line")
    if file.suffix.lower() in TABLES:
        raise DataError(f"{file} is a table; the file must hold one text per line, such as a .txt of the text column")
    try:
        # Only "\n" ends a line, as everywhere; a byte order mark is no part of the first text.
        read = file.read_bytes().decode("utf-8-sig").split("\n")
        lines = {at: line.removesuffix("\r") for at, line in enumerate(read, 1) if line.strip()}
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: {error}") from error
    if not lines:
        raise DataError(f"{file} has no texts; give one per line")
    paired = "\t" in next(iter(lines.values()))
    for at, line in lines.items():
        if ("\t" in line) != paired:
            has, first = ("has no tab", "has one") if paired else ("has a tab", "has none")
            raise DataError(f"{file}, line {at} {has} before a second text, the first text {first}; make them alike")
    parts = {at: line.split("\t", 1) for at, line in lines.items()}
    for at, texts in parts.items():
        for text, which in zip(texts, ("first text", "second text") if paired else ("text",), strict=True):
            if is_blank(text):
                raise DataError(f"{file}, line {at}: the {which} is empty; give it words or remove the line")
    return [Example(text=first, pair=rest[0] if rest else None, label=0) for first, *rest in parts.values()]
