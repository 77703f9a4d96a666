"""A task from the user's own files."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.core.heads import OF_TOKENS
from thresher.errors import DataError
from thresher.tasks.class_order import in_order, order_of
from thresher.tasks.labels import Labels, Relevance, is_whole, learn_labels, listed, raw_labels
from thresher.tasks.metrics import LABEL_METRICS, REGRESSION_METRICS
from thresher.tasks.ranking import RANK_METRICS
from thresher.tasks.readers import Table, read_table
from thresher.tasks.several import SeveralLabels, ask_about_several, has_lists, learn_several
from thresher.tasks.splits import (
    SELECTION_AT_MOST,
    SELECTION_SHARE,
    counted,
    fingerprint,
    hold_out,
    hold_out_selection,
    leak_note,
    query_of,
)
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.tasks.token_files import FileKind, token_kind
from thresher.tasks.truth import Label
from thresher.text import half_character, is_blank


@dataclass(frozen=True)
class Columns:
    """The names of the columns to read. The `optional` ones are read in those files that have them; labels that are
    `of_pairs` only together with pairs."""

    text: str
    pair: str | None
    label: str
    group: str | None = None
    optional: frozenset[str] = frozenset()
    of_pairs: bool = False

    def __post_init__(self) -> None:
        names = self.names()
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"column '{name}' is given twice; text, pair and label must be different columns")

    def names(self) -> list[str]:
        return [name for name in (self.text, self.pair, self.label, self.group) if name is not None]

    def read(self, path: Path) -> Table:
        table = read_table(path)
        for kind in ("text", "pair", "label", "group"):
            name = getattr(self, kind)
            if name is not None and name not in self.optional:
                table.require(name, option=f"--{kind}-column")
        return table

    def examples(self, table: Table, labels: "Readable") -> list[Example]:
        rows = range(len(table.rows))
        numbers: Sequence[Label] = [None for _ in rows]
        pairs = [text_at(table, row, self.pair) for row in rows] if self.pair and self._has(table, self.pair) else None
        if self._has(table, self.label) and (pairs is not None or not self.of_pairs):
            numbers = labels.read(table, self.label)
        groups = [_name(table, row, self.group) for row in rows] if self.group is not None else None
        return [
            Example(
                text=text_at(table, row, self.text),
                pair=None if pairs is None else pairs[row],
                label=numbers[row],
                group=None if groups is None else groups[row],
            )
            for row in rows
        ]

    def _has(self, table: Table, name: str) -> bool:
        return name not in self.optional or name in table.columns


Readable = Labels | SeveralLabels  # what reads a label column: classes, numbers, or several labels a row


def load_file_task(
    train: str | Path,
    *,
    test: str | Path | None = None,
    selection: str | Path | None = None,
    text_column: str = "text",
    pair_column: str | None = None,
    label_column: str = "label",
    regression: bool | None = None,
    means: str | None = None,
    group_column: str | None = None,
    separator: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Task:
    """Read training rows, and test rows from `test` or from a tenth of the training rows chosen by their hash.

    Rows that choose checkpoints and settings are a tenth of the rest, or those of `selection`; training rows that are
    among them are left out.
    `regression=None` decides by the labels: fractions are numbers to predict, lists are several labels a row, and
    everything else names classes; `separator` stands between several labels in a text. `means="score"` is for
    rerankers: the text is a query and the pair a document; labels, 0 and 1 or graded relevance, are read in those files
    that have them, and rows of a query, the same text or the same in `group_column`, stay together.
    `means="embedding"` takes texts alone, and pairs with a similarity in those files that have them.
    `means="span"` is for question answering: columns question, context and answers, where these have no other names;
    rows of an article (the column title), or of a context, stay together. `means="tags"` is for words and their tags:
    lists in the columns tokens and tags, or a file in CoNLL's columns.
    `class_names` are the classes in the order of the model's outputs; without them words are in alphabetical order, and
    a model whose classes have other names, or none, is refused.
    """
    train, test, chosen_by = Path(train), *(None if file is None else Path(file) for file in (test, selection))
    means = _meaning(means, regression=regression, separator=separator, pair=pair_column, group=group_column)
    if means in OF_TOKENS:
        named = (text_column, pair_column, label_column, group_column)
        kind, table = token_kind(means, train, named, names=class_names)
    else:
        columns = _columns(means, text=text_column, pair=pair_column, label=label_column, group=group_column)
        table = columns.read(train)
        labels = _labels(table, label_column, means=means, regression=regression, separator=separator)
        labels = labels if class_names is None else in_order(labels, class_names, where=train)
        spec = _spec(train, columns, labels, means=means, class_order=order_of(labels, class_names))
        kind = FileKind(spec, columns.read, lambda table: columns.examples(table, labels))
    key = query_of if means in ("score", "span") else fingerprint
    parts = _parted(kind, kind.read(table), test=test, chosen_by=chosen_by, key=key)
    _check_enough(train, kept=parts.kept, selection=parts.chosen, alone=test is None, means=means)
    spec = kind.spec
    _check_read_somewhere(spec, [parts.kept, parts.chosen, *parts.tests.values()], default=label_column == "label")
    classes = f"; {spec.means} {listed(spec.labels)}" if spec.labels else ""
    if spec.means == "value":
        classes = _range_of(parts.kept, decided=regression is None)
    source = f"{train}: {len(table.rows):,} rows, {parts.said}{classes}{leak_note(parts.leaked)}"
    given = {"train": train, "test": test, "selection": chosen_by}
    files = {name: {"path": str(path), "sha256": digest_of(path)} for name, path in given.items() if path is not None}
    return Task(spec, parts.kept, parts.chosen, parts.tests, source, files=files)


@dataclass(frozen=True)
class _Parts:
    """Rows to train with, to choose by and to test on; how many of the first were among the last; all in words."""

    kept: list[Example]
    chosen: list[Example]
    tests: dict[str, list[Example]]
    leaked: int
    said: str


def _parted(
    kind: FileKind, rows: list[Example], *, test: Path | None, chosen_by: Path | None, key: Callable[[Example], bytes]
) -> _Parts:
    """Test rows and selection rows out of their files, or held out of the training rows by `key`."""
    chosen = [] if chosen_by is None else kind.rows(chosen_by)
    rows = _without(rows, chosen, key) if chosen else rows
    if test is None:
        rows, held = hold_out(rows, share=SELECTION_SHARE, at_most=SELECTION_AT_MOST, key=key)
        tests = {"held_out": held}
        tested = f"{len(held):,} rows held out by hash as test"
    else:
        tests = {"test": kind.rows(test)}
        tested = f"{len(tests['test']):,} test rows from {test}"
    if chosen_by is None:
        kept, chosen, leaked = hold_out_selection(rows, tests.values(), key=key)
        return _Parts(kept, chosen, tests, leaked, f"{len(chosen):,} of them for selection; {tested}")
    (reported,) = tests.values()
    both = len(chosen) - len(_without(chosen, reported, key))
    if both:
        rule = "what chooses the model must not test it"
        raise DataError(f"{chosen_by} and the test rows have {counted(both, 'row')} in common; {rule}")
    leaked = len(rows) - len(_without(rows, reported, key))
    return _Parts(rows, chosen, tests, leaked, f"{len(chosen):,} rows for selection from {chosen_by}; {tested}")


def digest_of(file: Path) -> str:
    """By which a file is known again, wherever it lies."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _range_of(rows: list[Example], *, decided: bool) -> str:
    """What numbers there are to predict, and whether that they are to be predicted was `decided` by looking at them."""
    numbers = [row.label for row in rows if isinstance(row.label, float | int)]
    why = "; they have fractions, so this is a regression (say --classes if they name classes)" if decided else ""
    return f"; labels are numbers from {min(numbers):g} to {max(numbers):g}{why}"


def load_test_file(
    test: Path,
    *,
    text_column: str,
    pair_column: str | None,
    label_column: str,
    labels: tuple[str, ...],
    means: str | None = None,
    group_column: str | None = None,
    separator: str | None = None,
) -> Task:
    """Rows to evaluate a finished model on, with the class names it was trained with (none for regression)."""
    if means in OF_TOKENS:
        named = (text_column, pair_column, label_column, group_column)
        kind, table = token_kind(means, test, named, names=labels or None)
        return Task(kind.spec, [], [], {"test": kind.read(table)}, f"{test}: {len(table.rows):,} rows")
    columns = _columns(means, text=text_column, pair=pair_column, label=label_column, group=group_column)
    whole = bool(labels) and all(map(is_whole, labels))
    reader: Readable = Relevance() if means == "score" else Labels(labels, whole=whole)
    reader = SeveralLabels(labels, separator) if means == "labels" else reader
    rows = columns.examples(columns.read(test), reader)
    spec = _spec(test, columns, reader, means=means)
    return Task(spec, [], [], {"test": rows}, f"{test}: {len(rows):,} rows")


def _meaning(
    means: str | None, *, regression: bool | None, separator: str | None, pair: str | None, group: str | None
) -> str | None:
    """What was asked for, where the flags fit together; None leaves classes, values and lists to the labels."""
    if means not in (None, "labels", "score", "embedding", *OF_TOKENS):
        raise DataError(
            f"means = {means!r} is none of labels, score, embedding, span and tags; classes and values need no word"
        )
    for given, words in ((regression, "regression and classes"), (separator, f"the separator {separator!r}")):
        if given is not None and means in ("score", "embedding", *OF_TOKENS):
            raise DataError(
                f"{words}: rerankers (--rerank), embeddings (--embed), answers and tags have none; leave it out"
            )
    if separator is not None and regression is not None:
        raise DataError(f"the separator {separator!r} says that rows have several labels; leave out --regression")
    if means == "score" and pair is None:
        raise DataError("a reranker reads a query and a document; name the document's column with --pair-column")
    if group is not None and means not in ("score", "span"):
        raise DataError(f"--group-column '{group}' names a reranker's queries or articles; it goes with --rerank")
    return "labels" if separator is not None else means


def _columns(means: str | None, *, text: str, pair: str | None, label: str, group: str | None) -> Columns:
    """Rerankers and embeddings need no labels, and embeddings no second text."""
    needless: dict[str | None, list[str | None]] = {"score": [label], "embedding": [label, pair]}
    optional = needless.get(means, [])
    known = frozenset(name for name in optional if name is not None)
    return Columns(text, pair, label, group, known, of_pairs=means == "embedding")


def _labels(
    table: Table, column: str, *, means: str | None, regression: bool | None, separator: str | None
) -> Readable:
    if means in ("score", "embedding"):
        return Relevance() if means == "score" else Labels((), whole=False)
    if means == "labels" or (regression is None and has_lists(table, column)):
        return learn_several(table, column, separator=separator)
    found = [row.get(column) for row in table.rows]
    if regression is None and any(value is None or (isinstance(value, str) and is_blank(value)) for value in found):
        ask_about_several(table, column, found)  # one of several labels may be none, and is no row to remove
    labels = learn_labels(table, column, regression=regression)
    if regression is None and labels.names:
        ask_about_several(table, column, raw_labels(table, column))
    return labels


def _spec(file: Path, columns: Columns, labels: Readable, *, means: str | None, class_order: str = "task") -> TaskSpec:
    means = means or ("labels" if isinstance(labels, SeveralLabels) else "classes" if labels.names else "value")
    judged = {
        "classes": ("accuracy",),
        "labels": LABEL_METRICS,
        "value": REGRESSION_METRICS,
        "score": RANK_METRICS[:1],
        "embedding": ("spearman",),
    }
    return TaskSpec(
        name=file.name.split(".")[0],
        text_column=columns.text,
        pair_column=columns.pair,
        labels=labels.names,
        metrics=judged[means],
        label_column=columns.label,
        means=means,
        class_order=class_order,
        group_column=columns.group,
        separator=labels.separator if isinstance(labels, SeveralLabels) else None,
    )


def _without(rows: list[Example], others: list[Example], key: Callable[[Example], bytes]) -> list[Example]:
    gone = {key(row) for row in others}
    return [row for row in rows if key(row) not in gone]


def text_at(table: Table, row: int, column: str) -> str:
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


def _name(table: Table, row: int, column: str) -> str:
    """A query's identity: text, or a number."""
    value: Any = table.value(row, column)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{table.where(row)}: '{column}' is {value!r}; it must be a name or a whole number")
    return str(value)


def _check_enough(path: Path, *, kept: list[Example], selection: list[Example], alone: bool, means: str | None) -> None:
    kinds = {"score": ("queries", "queries"), "span": ("articles", "articles")}.get(str(means), ("rows", "rows"))
    needed = (
        f"three different {kinds[0]} (train, selection, test)"
        if alone
        else f"two different {kinds[0]} that are not test {kinds[1]}"
    )
    if not kept or not selection:
        raise DataError(f"{path} has too few different {kinds[0]} to split; it needs at least {needed}")
    if means not in ("score", "embedding", *OF_TOKENS) and len({row.label for row in kept}) == 1:
        raise DataError(
            f"{path} has only one label left in its {len(kept)} training rows after the split; add rows of other labels"
        )


def _check_read_somewhere(spec: TaskSpec, splits: Sequence[Sequence[Example]], *, default: bool) -> None:
    """A column that was named and that no file has is a mistake."""
    first = [rows[0] for rows in splits if rows]
    if spec.means == "embedding" and spec.pair_column is not None and all(row.pair is None for row in first):
        raise DataError(f"no file has the column '{spec.pair_column}'; name another, or leave --pair-column out")
    if spec.means in ("score", "embedding") and not default and all(row.label is None for row in first):
        rule = " together with a second text (--pair-column)" if spec.means == "embedding" else ""
        raise DataError(
            f"no file has the column '{spec.label_column}'{rule}; name another, or leave --label-column out"
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
