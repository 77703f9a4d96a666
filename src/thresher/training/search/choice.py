"""Which of the measured models to take: the cheapest whose drop is within the limit, noise considered."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thresher.tasks.bootstrap import Floats
from thresher.training.search.expected import Expected


@dataclass(frozen=True)
class Choice:
    """Index of the chosen model, and whether it is within the limit at the confidence asked for."""

    index: int
    within: bool


def upper_bounds(expected: Expected, *, rows: int, confidence: float) -> Floats:
    """(models,) What the expected drop of each model stays below, with this one-sided confidence."""
    # Drawing rows shows no change that no row shows: a loss that n rows miss with this confidence is always possible.
    unseen = -math.log(1 - confidence) / rows
    return np.maximum(np.quantile(expected.draws, confidence, axis=0), expected.drops + unseen)


def choose(costs: Floats, bounds: Floats, *, limit: float) -> Choice:
    """The cheapest within the limit; if there is none, the one that comes nearest to it."""
    within: NDArray[np.bool_] = bounds <= limit
    if within.any():
        return Choice(int(np.where(within, costs, np.inf).argmin()), within=True)
    return Choice(int(bounds.argmin()), within=False)


def front(costs: Floats, drops: Floats) -> list[int]:
    """Indices of the models that no other beats in both cost and drop, from the cheapest on."""
    found: list[int] = []
    for index in np.lexsort((drops, costs)):
        if not found or drops[index] < drops[found[-1]]:
            found.append(int(index))
    return found
