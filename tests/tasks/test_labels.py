from pathlib import Path
from typing import Any

import pytest

from thresher.errors import DataError
from thresher.tasks.labels import Labels, learn_labels
from thresher.tasks.readers import Table


def table(*values: Any) -> Table:
    return Table(Path("rows.csv"), ("label",), [{"label": value} for value in values], list(range(2, len(values) + 2)))


@pytest.mark.parametrize(
    ("values", "names", "indices"),
    [
        (("pos", "neg", " pos "), ("neg", "pos"), [1, 0, 1]),
        (("10", "9", "10"), ("9", "10"), [1, 0, 1]),
        ((10, -1, 10), ("-1", "10"), [1, 0, 1]),
        ((1.0, "1", 0), ("0", "1"), [1, 1, 0]),
        (("1.0", "0.0"), ("0", "1"), [1, 0]),
        (("01", "1"), ("01", "1"), [0, 1]),
        (("1", "unknown", "10"), ("1", "10", "unknown"), [0, 2, 1]),
        ((True, False), ("false", "true"), [1, 0]),
        (("1_0", "1"), ("1", "1_0"), [1, 0]),
        ((2**60 + 1, 2**60), (str(2**60), str(2**60 + 1)), [1, 0]),
    ],
)
def test_classes(values: tuple[Any, ...], names: tuple[str, ...], indices: list[int]) -> None:
    labels = learn_labels(table(*values), "label", regression=None)
    assert labels.names == names
    assert labels.read(table(*values), "label") == indices


@pytest.mark.parametrize("values", [("0.5", "1", "2e-1"), (0.5, 1, 0.2), (".5", 1.0, "0.2")])
def test_fractions_mean_regression(values: tuple[Any, ...]) -> None:
    labels = learn_labels(table(*values), "label", regression=None)
    assert labels == Labels((), whole=False)
    assert labels.read(table(*values), "label") == [0.5, 1.0, 0.2]


def test_the_user_may_decide() -> None:
    assert learn_labels(table(1, 2), "label", regression=True).read(table(3), "label") == [3.0]
    assert learn_labels(table("0.5", "x"), "label", regression=False).names == ("0.5", "x")


@pytest.mark.parametrize(
    ("values", "regression", "message"),
    [
        (("a", None), None, r"rows.csv, row 2 \(line 3\) has no label in 'label'; give it one"),
        (("a", "  "), None, r"row 2 \(line 3\) has no label"),
        ((0.5, float("nan")), None, r"row 2 \(line 3\): label nan is not a finite number"),
        (("0.5", "NaN"), None, r"label NaN is not a finite number"),
        (("0", "-inf"), None, r"label -inf is not a finite number"),
        (("0.5", "1e999"), None, r"label 1e999 is not a finite number"),
        ((1, 10**400), None, r"is not a finite number"),
        (("a", "nan"), None, r"label nan is not a finite number"),
        ((["a"], "b"), None, r"row 1 \(line 2\): the label in 'label' is a list; it must be a class name or a number"),
        (
            ("0.5", "high"),
            None,
            r"row 2 \(line 3\): label 'high' is not a number, but row 1 has 0.5; correct",
        ),
        (("1", "high"), True, r"row 2 \(line 3\): label 'high' is not a number, which regression needs"),
        (("1", True), True, r"label 'True' is not a number"),
        (("a", "a"), None, r"every label in 'label' is 'a'; at least two different labels"),
        (("0.5", "0.5"), None, r"every label in 'label' is '0.5'"),
        (tuple(range(60)), None, r"60 different labels in 60 rows; say --regression"),
        (tuple(f"text {i}" for i in range(60)), None, r"60 different labels in 60 rows; name the column"),
    ],
)
def test_unusable_labels(values: tuple[Any, ...], regression: bool | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn_labels(table(*values), "label", regression=regression)


def test_many_classes_are_accepted_when_said_or_well_filled() -> None:
    assert len(learn_labels(table(*range(60)), "label", regression=False).names) == 60
    assert len(learn_labels(table(*list(range(60)) * 4), "label", regression=None).names) == 60


def test_class_unknown_to_the_training_file() -> None:
    with pytest.raises(DataError, match=r"row 2 \(line 3\): label 'c' is none of the classes in training: a, b"):
        Labels(("a", "b"), whole=False).read(table("a", "c"), "label")
    with pytest.raises(DataError, match=r"in training: 0, .*, 19 and 5 more; correct it"):
        Labels(tuple(map(str, range(25))), whole=True).read(table("25"), "label")
