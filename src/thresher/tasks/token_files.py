"""Tasks of token outputs from the user's own files: questions with contexts, and words with tags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.errors import DataError
from thresher.tasks.class_order import ALPHABET, USER
from thresher.tasks.questions import QuestionColumns, question_rows
from thresher.tasks.readers import Table, read_table
from thresher.tasks.tagged import TAGS, WORDS, tag_column, tag_names, tagged_rows
from thresher.tasks.task import Example, TaskSpec

# The names that --text-column and --label-column have where nobody says any, and what stands there then.
SPAN_DEFAULTS = {"text": "question", "label": "answers"}
TAG_DEFAULTS = {"text": WORDS, "label": TAGS}


@dataclass(frozen=True)
class FileKind:
    """What task files of one kind are, and how they are opened and read."""

    spec: TaskSpec
    opened: Callable[[Path], Table]
    read: Callable[[Table], list[Example]]

    def rows(self, file: Path) -> list[Example]:
        return self.read(self.opened(file))


def token_kind(
    means: str, first: Path, columns: tuple[str, str | None, str, str | None], *, names: Sequence[str] | None
) -> tuple[FileKind, Table]:
    """The kind of the `first` file, whose tags are all there are unless `names` says it; and that file. columns: of
    text, pair, label and group."""
    text_column, pair_column, label_column, group_column = columns
    table = read_table(first)
    name = first.name.split(".")[0]
    if means == "span":
        if names:
            raise DataError(f"class_names = {', '.join(names)}: answers have no classes; leave the names out")
        own = QuestionColumns(
            SPAN_DEFAULTS.get(text_column, text_column),
            pair_column or "context",
            SPAN_DEFAULTS.get(label_column, label_column),
            group_column,
        )
        spec = TaskSpec(
            name,
            own.question,
            own.context,
            (),
            ("f1",),
            label_column=own.answers,
            means=means,
            group_column=group_column,
        )
        return FileKind(spec, read_table, lambda table: question_rows(table, own)), table
    if pair_column is not None:
        raise DataError(f"--pair-column '{pair_column}': tags are of the words of one text; leave it out")
    words = TAG_DEFAULTS.get(text_column, text_column)
    tags = tag_column(table, TAG_DEFAULTS.get(label_column, label_column))
    if names is None:
        table.require(tags)
    labels = tuple(names) if names is not None else tag_names(table, tags)
    order = ALPHABET if names is None else USER
    spec = TaskSpec(name, words, None, labels, ("f1",), label_column=tags, means=means, class_order=order)
    return FileKind(spec, read_table, lambda table: tagged_rows(table, words=words, tags=tags, names=labels)), table
