"""What a user's label column means: names of classes, or numbers to predict."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thresher.errors import DataError
from thresher.tasks.readers import Table

# Beyond this many different values a column may be numbers, or text, rather than classes.
MANY_CLASSES = 50
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[+-]?0\d", re.ASCII)


@dataclass(frozen=True)
class Labels:
    """How labels are read: the class names in order (none for regression), and whether they are whole numbers."""

    names: tuple[str, ...]
    whole: bool
    numbers: ClassVar[str] = "which regression needs"

    def read(self, table: Table, column: str) -> list[float | int]:
        """The labels of a file as class indices or floats; a class that is not among the names is an error."""
        index = {name: i for i, name in enumerate(self.names)}
        found: list[float | int] = []
        for row, value in enumerate(raw_labels(table, column)):
            if not self.names:
                found.append(_number_at(table, row, value, why=self.numbers))
                continue
            name = _class_name(value, whole=self.whole)
            if name not in index:
                raise DataError(
                    f"{table.where(row)}: label '{name}' is none of the classes in training: {listed(self.names)}; "
                    "correct it or remove the row"
                )
            found.append(index[name])
        return found


@dataclass(frozen=True)
class Relevance(Labels):
    """How well a document answers a query: 0 for not at all, and more the better."""

    names: tuple[str, ...] = ()
    whole: bool = False
    numbers: ClassVar[str] = "as a document's relevance is: 0, or more the better it fits"

    def read(self, table: Table, column: str) -> list[float | int]:
        found = super().read(table, column)
        for row, value in enumerate(found):
            if value < 0:
                raise DataError(f"{table.where(row)}: relevance {value:g} is below 0; 0 means that nothing fits")
        return found


def raw_labels(table: Table, column: str) -> list[Any]:
    """The column's values, with text stripped; a missing or unusable one is an error."""
    found = []
    for row in range(len(table.rows)):
        value = table.value(row, column)
        value = value.strip() if isinstance(value, str) else value
        if value is None or value == "":
            raise DataError(f"{table.where(row)} has no label in '{column}'; give it one or remove the row")
        if isinstance(value, dict | list | bytes):
            several = ", or a list of labels in every row" if isinstance(value, list) else ""
            raise DataError(
                f"{table.where(row)}: the label in '{column}' is a {type(value).__name__}; "
                f"it must be a class name or a number{several}"
            )
        number = as_number(value)
        if number is not None and not math.isfinite(number):
            raise DataError(f"{table.where(row)}: label {value} is not a finite number; correct it or remove the row")
        found.append(value)
    return found


def learn_labels(table: Table, column: str, *, regression: bool | None) -> Labels:
    """Decide from the training file what the labels are.

    Left open, numbers with a fraction mean regression and everything else means classes. A column that fits neither
    well is an error that asks, because a wrong guess would train for hours on the wrong loss.
    """
    values = raw_labels(table, column)
    numbers = [as_number(value) for value in values]
    whole = all(number is not None and number.is_integer() for number in numbers) and not any(
        isinstance(value, str) and _LEADING_ZERO.match(value) for value in values
    )
    if regression is None:
        regression = _looks_like_regression(table, column, values=values, numbers=numbers)
    different = len({_class_name(value, whole=whole) for value in values})
    if different == 1:
        raise DataError(
            f"{table.path}: every label in '{column}' is '{values[0]}'; at least two different labels are needed"
        )
    if regression:
        for row, value in enumerate(values):
            _number_at(table, row, value, why=Labels.numbers)
        return Labels((), whole=False)
    names = {_class_name(value, whole=whole) for value in values}
    return Labels(tuple(sorted(names, key=int) if whole else sorted(names)), whole=whole)


def _looks_like_regression(
    table: Table, column: str, *, values: Sequence[Any], numbers: Sequence[float | None]
) -> bool:
    fraction = next((row for row, number in enumerate(numbers) if number is not None and not number.is_integer()), None)
    word = next((row for row, number in enumerate(numbers) if number is None), None)
    if fraction is not None and word is not None:
        raise DataError(
            f"{table.where(word)}: label '{values[word]}' is not a number, "
            f"but row {fraction + 1} has {values[fraction]}; correct it, or say --classes (regression=False)"
        )
    different = len(set(values))
    if fraction is None and different > MANY_CLASSES and different * 4 > len(values):
        if word is None:
            choice = (
                "say --regression (regression=True) if they are numbers to predict, or --classes (regression=False)"
            )
        else:
            choice = "name the column with the classes, or say --classes (regression=False) if it is this one"
        raise DataError(f"{table.path}: '{column}' has {different} different labels in {len(values)} rows; {choice}")
    return fraction is not None


def as_number(value: Any) -> float | None:
    """The value as a float, or None when it is a word (a bool counts as a word)."""
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _number_at(table: Table, row: int, value: Any, *, why: str) -> float:
    number = as_number(value)
    if number is None:
        raise DataError(f"{table.where(row)}: label '{value}' is not a number, {why}; correct it")
    return number


def _class_name(value: Any, *, whole: bool) -> str:
    """One name per class: 1, '1' and 1.0 are the same where all labels are whole numbers."""
    number = as_number(value) if whole else None
    if number is not None and number.is_integer():
        try:
            return str(int(value))
        except ValueError:  # text such as '1.0'
            return str(int(number))
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_whole(name: str) -> bool:
    """Whether training took the name for a number: it then wrote '7', and never '07', which stays a name."""
    try:
        return str(int(name)) == name
    except ValueError:
        return False


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
