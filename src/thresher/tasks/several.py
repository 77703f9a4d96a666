"""Label columns that hold several labels a row: lists in JSON and Parquet, or text with a separator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thresher.errors import DataError
from thresher.tasks.labels import is_whole, listed
from thresher.tasks.readers import Table

SEPARATORS = ("|", ";", ",")  # that ask whether a label is several


@dataclass(frozen=True)
class SeveralLabels:
    """How rows with several labels are read: the names in order, and what stands between them in a text."""

    names: tuple[str, ...]
    separator: str | None

    @property
    def whole(self) -> bool:
        """Whether all names are whole numbers, whose order is their own."""
        return all(map(is_whole, self.names))

    def read(self, table: Table, column: str) -> list[tuple[int, ...]]:
        """For each row a 0 or 1 for every name; a label that is not among the names is an error."""
        index = {name: i for i, name in enumerate(self.names)}
        found = []
        for row in range(len(table.rows)):
            marks = [0] * len(self.names)
            for name in _labels_at(table, row, column, self.separator):
                if name not in index:
                    raise DataError(
                        f"{table.where(row)}: label '{name}' is none of the labels in training: {listed(self.names)}; "
                        "correct it or remove the row"
                    )
                marks[index[name]] = 1
            found.append(tuple(marks))
        return found


def learn_several(table: Table, column: str, *, separator: str | None) -> SeveralLabels:
    """The labels of the training file: whole numbers in their order, as a model's outputs are numbered, and names in
    the alphabet's."""
    if separator == "":
        raise DataError("the separator is empty; give the characters that stand between labels, such as '|'")
    names = {name for row in range(len(table.rows)) for name in _labels_at(table, row, column, separator)}
    if len(names) < 2:
        raise DataError(
            f"{table.path}: '{column}' has {len(names)} different labels; at least two are needed to tell them apart"
        )
    return SeveralLabels(tuple(sorted(names, key=int if all(map(is_whole, names)) else None)), separator)


def has_lists(table: Table, column: str) -> bool:
    """Whether the column's values are lists, as JSON and Parquet have them."""
    return any(isinstance(row.get(column), list) for row in table.rows)


def ask_about_several(table: Table, column: str, values: Sequence[Any]) -> None:
    """Labels such as a|b, with parts that other labels have too, may be one class or several labels: ask."""
    texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    for separator in SEPARATORS:
        first_with: dict[str, str] = {}
        for text in texts:
            for part in {part.strip() for part in text.split(separator)} - {""}:
                other = first_with.setdefault(part, text)
                joined = text if separator in text else other
                if other != text and separator in joined:
                    raise DataError(
                        f"{table.path}: '{column}' has the label '{joined}', and '{part}' is part of others too; if "
                        f"these are several labels, say --separator '{separator}' (separator='{separator}'); if each "
                        "is one class, say --classes (regression=False)"
                    )


def _labels_at(table: Table, row: int, column: str, separator: str | None) -> list[str]:
    value = table.value(row, column)
    where = f"{table.where(row)}: the label in '{column}'"
    if value is None:
        raise DataError(f"{table.where(row)} has no label in '{column}'; give it an empty list or remove the row")
    if isinstance(value, str) and separator is not None:
        value = value.split(separator)
        return [part.strip() for part in value if part.strip()]
    if not isinstance(value, list):
        rule = "a list of labels as in other rows" if separator is None else f"text with '{separator}' between labels"
        raise DataError(f"{where} is a {type(value).__name__}; it must be {rule}")
    for part in value:
        if isinstance(part, bool) or not isinstance(part, str | int) or not str(part).strip():
            raise DataError(f"{where} has {part!r} in its list; labels must be names or whole numbers")
    return [str(part).strip() for part in value]
