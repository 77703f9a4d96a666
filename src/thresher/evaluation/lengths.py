"""How long a task's rows are in tokens, and how far training and evaluation rows differ in that."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thresher.errors import DataError

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class LengthStatistics:
    """Quartiles and 99th percentiles of whole rows; `kl` is KL(train || evaluated) of rows cut at a longest length."""

    train_quartiles: tuple[float, ...]
    eval_quartiles: tuple[float, ...]
    train_p99: float
    eval_p99: float
    kl: float


def length_statistics(
    train: Sequence[int], evaluated: Sequence[int], *, bins: int, longest: int | None
) -> LengthStatistics:
    """`bins` and `longest` (tokens that a row is cut to, None for whole rows) are those of the divergence."""
    return LengthStatistics(
        train_quartiles=quantiles(train, QUARTILES),
        eval_quartiles=quantiles(evaluated, QUARTILES),
        train_p99=quantiles(train, (0.99,))[0],
        eval_p99=quantiles(evaluated, (0.99,))[0],
        kl=kl_divergence(train, evaluated, bins=bins, longest=longest),
    )


def quantiles(lengths: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
    """Between two lengths, where the share falls between two rows, on the straight line from one to the other."""
    if not lengths:
        raise DataError("there are 0 rows to take lengths of; give at least one")
    return tuple(np.quantile(lengths, shares).tolist())


def kl_divergence(train: Sequence[int], evaluated: Sequence[int], *, bins: int, longest: int | None = None) -> float:
    """KL(train || evaluated) in nats, after sorting both into the same equally wide bins.

    The bins span the shortest to the longest row of both. A bin that is empty on one side would make the divergence
    infinite and is left out; so done, on rows cut to 128 tokens, the paper's numbers come out.
    """
    if not train or not evaluated or bins < 1:
        raise DataError(f"{len(train)} and {len(evaluated)} rows in {bins} bins: all three must be at least 1")
    sides = [np.minimum(side, longest) if longest is not None else np.asarray(side) for side in (train, evaluated)]
    edges = np.linspace(min(side.min() for side in sides), max(side.max() for side in sides), bins + 1)
    ours, theirs = (np.histogram(side, edges)[0] / len(side) for side in sides)
    both = (ours > 0) & (theirs > 0)
    return float((ours[both] * np.log(ours[both] / theirs[both])).sum())
