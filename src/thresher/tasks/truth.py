"""What outputs are judged against: the rows' labels, or without any the outputs of the dense model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.errors import DataError
from thresher.tokenizing.windows import Windows


@dataclass(frozen=True)
class Answers:
    """What people answered to a question, and where in the context each answer begins; nothing where it has none."""

    texts: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()


# A class index, a number, a 0 or 1 for each of several labels, the answers to a question, a tag's number for each word,
# or nothing.
Label = float | int | tuple[int, ...] | Answers | None


@dataclass(frozen=True)
class Truth:
    """values: labels (rows,), or (rows, labels) of 0 and 1; where rows are not `labelled`, the outputs of the dense
    model (rows, outputs). groups: (rows,) the number of each row's query, for rerankers.

    Of outputs for every token, `windows` say which token is what, and `texts` are the contexts that answers are from.
    `null_threshold`: an answer is withheld where none scores higher by more than this; None: by what suits these rows,
    which is for rows that choose it and never for those that judge.
    """

    values: NDArray[Any]
    labelled: bool = True
    groups: NDArray[np.integer] | None = None
    windows: Windows | None = None
    texts: tuple[str, ...] = ()
    null_threshold: float | None = 0.0

    @property
    def rows(self) -> int:
        return len(self.values) if self.windows is None else self.windows.items

    def with_threshold(self, null_threshold: float | None) -> "Truth":
        return replace(self, null_threshold=null_threshold)

    @property
    def units(self) -> int:
        """What a bootstrap draws: queries with all their rows where they are judged as a whole, else rows."""
        return len(np.unique(self.groups)) if self.labelled and self.groups is not None else self.rows

    def of(self, rows: NDArray[np.integer]) -> "Truth":
        """The truth of some rows; what is read of tokens is cut by rows once it is read (`tasks.of_tokens`)."""
        return Truth(self.values[rows], self.labelled, None if self.groups is None else self.groups[rows])


def as_truth(labels: "Truth | NDArray[Any] | Sequence[float | int]") -> Truth:
    return labels if isinstance(labels, Truth) else Truth(np.asarray(labels))


def truth_of(
    labels: Sequence[Label],
    *,
    groups: Sequence[str] | None,
    dense: NDArray[Any] | None,
    name: str,
    whole: bool = False,
) -> Truth:
    """The truth of a task's rows; `name` is the task's. `whole`: a label is one thing, not a row of a table."""
    numbers = None if groups is None else np.unique(np.array(groups, dtype=object), return_inverse=True)[1]
    if has_labels(labels, name=name) or not labels:
        values = _objects(labels) if whole else np.array(labels)
        if labels and not whole:
            _check_judging(values, numbers, name=name)
        return Truth(values, groups=numbers)
    if dense is None:
        raise DataError(
            f"task {name} has rows without labels, which are judged by agreement with the dense model; "
            "give its outputs, or rows with labels"
        )
    return Truth(np.asarray(dense), labelled=False, groups=numbers)


def _check_judging(values: NDArray[Any], groups: NDArray[np.integer] | None, *, name: str) -> None:
    """Refuse labels by which every model scores the same, so that nothing could ever be lost."""
    if values.ndim == 2 and not values.any():
        raise DataError(
            f"task {name} has {len(values):,} rows and no label on any of them, so that F1 is 0 whatever is answered; "
            "give rows that have some"
        )
    if groups is None:
        return
    if not (values > 0).any():
        raise DataError(
            f"task {name} has {len(values):,} rows and no relevant one among them, so that no order can be judged; "
            "give a relevance above 0 to some, or leave the labels out"
        )
    least, most = np.full(groups.max() + 1, np.inf), np.full(groups.max() + 1, -np.inf)
    np.minimum.at(least, groups, values)
    np.maximum.at(most, groups, values)
    if (least == most).all():
        raise DataError(
            f"task {name} has {len(values):,} rows, and those of each query are all equally relevant, so that every "
            "order is right; give queries documents that do not fit, too, or leave the labels out"
        )


def has_labels(labels: Sequence[Label], *, name: str) -> bool:
    """Whether rows have labels; all of them must, or none."""
    missing = sum(label is None for label in labels)
    if 0 < missing < len(labels):
        raise DataError(
            f"task {name}: {missing:,} of {len(labels):,} rows have no label; give all rows of a split one, or none"
        )
    return missing == 0 and bool(labels)


def _objects(items: Sequence[Any]) -> NDArray[Any]:
    """(items,) whatever they are: numpy would make a table of equally long tuples."""
    found = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        found[place] = item
    return found
