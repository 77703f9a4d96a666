"""Rows of token classification: words, and a tag for each."""

from collections.abc import Sequence
from typing import Any

from thresher.errors import DataError
from thresher.tasks.labels import listed
from thresher.tasks.readers import Table
from thresher.tasks.task import Example
from thresher.text import half_character, is_blank, shown
from thresher.tokenizing.tags import OUTSIDE, split_tag

WORDS, TAGS = "tokens", "tags"
OTHER_TAGS = "ner_tags"  # what CoNLL's copies call them


def tag_column(table: Table, asked: str) -> str:
    """The column of tags: the one asked for, or what it is called elsewhere."""
    other = asked == TAGS and TAGS not in table.columns and OTHER_TAGS in table.columns
    return OTHER_TAGS if other else asked


def tag_names(table: Table, column: str) -> tuple[str, ...]:
    """All tags of a file: O first, then by what they name, so that B- and I- of one kind are neighbours."""
    found = {tag for row in range(len(table.rows)) for tag in _list(table, row, column)}
    if len(found) < 2:
        raise DataError(f"{table.path}: '{column}' has {len(found)} different tags; at least two are needed")
    return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, split_tag(tag)[::-1], tag)))


def tagged_rows(table: Table, *, words: str = WORDS, tags: str = TAGS, names: Sequence[str]) -> list[Example]:
    """All rows of a file; a tag that is not among the `names` is an error. A file without the column has no tags."""
    table.require(words)
    index = {name: number for number, name in enumerate(names)}
    rows = []
    for row in range(len(table.rows)):
        own = tuple(_word(table, row, words, word) for word in _list(table, row, words))
        label = _label(table, row, tags, index, len(own)) if tags in table.columns else None
        rows.append(Example(text=" ".join(own), pair=None, label=label, words=own))
    return rows


def _label(table: Table, row: int, column: str, index: dict[str, int], words: int) -> tuple[int, ...]:
    tags = _list(table, row, column)
    if len(tags) != words:
        raise DataError(f"{table.where(row)} has {words} words and {len(tags)} tags; every word needs one")
    for tag in tags:
        if tag not in index:
            raise DataError(
                f"{table.where(row)}: tag {shown(tag)} is none of the tags in training: {listed(list(index))}; correct "
                "it or remove the row"
            )
    return tuple(index[tag] for tag in tags)


def _list(table: Table, row: int, column: str) -> list[str]:
    value: Any = table.value(row, column)
    if isinstance(value, str):  # a table of texts: words with spaces between them
        value = value.split()
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise DataError(
            f"{table.where(row)}: '{column}' is {shown(value)}; it must be a list of texts, one for each word, such as "
            '["O", "B-PER"]; numbers of tags need their names'
        )
    return value


def _word(table: Table, row: int, column: str, word: str) -> str:
    where = f"{table.where(row)}: '{column}'"
    if is_blank(word) or len(word.split()) > 1:
        raise DataError(f"{where} has {shown(word)}; a word is neither empty nor has it spaces inside")
    if (bad := half_character(word)) is not None:
        raise DataError(f"{where} has {bad}, half a character that no tokenizer can read; remove it")
    return word
