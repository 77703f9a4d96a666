"""Which of the measured models to take: the cheapest whose drop is within the limit, noise considered.

Taking the cheapest one whose measured drop is within the limit would favour the lucky: with many models and few rows,
some look better than they are. So two upper bounds at the same one-sided confidence must be within the limit:

* the model's own, from the paired bootstrap over rows;
* that of the curve, drop against cost, which is fitted to all trained models under the one thing known beforehand, that
  a cheaper model is not better. The fit is made anew in every draw, so that the bound is the fit's and not a row's.

The curve's bound falls with cost. Taking the cheapest model under it is therefore the same as testing from the dearest
to the cheapest and stopping at the first failure, which needs no correction for the number of models tested.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """All arrays are (models,): the smoothed drop, and the larger of the two upper bounds."""

    curve: Floats
    bound: Floats
    within: NDArray[np.bool_]


@dataclass(frozen=True)
class Choice:
    """Index of the chosen model, and whether it is within the limit at the confidence asked for."""

    index: int
    within: bool


def judge(
    costs: Floats,
    trained: NDArray[np.bool_],
    drops: Floats,
    draws: Floats,
    *,
    rows: int,
    limit: float,
    confidence: float,
) -> Judged:
    """costs, trained, drops: (models,); draws: (resamples, models). Untrained models are read off the curve."""
    # Drawing rows shows no change that no row shows: a loss that n rows miss with this confidence is always possible.
    unseen = -math.log(1 - confidence) / rows
    own = np.maximum(np.quantile(draws, confidence, axis=0), drops + unseen)
    bound = np.maximum(own, np.quantile(_curve(costs, trained, draws), confidence, axis=0))
    return Judged(curve=_curve(costs, trained, drops[None])[0], bound=bound, within=bound <= limit)


def choose(costs: Floats, judged: Judged) -> Choice:
    """The cheapest within the limit; if there is none, the one that comes nearest to it."""
    if judged.within.any():
        return Choice(int(np.where(judged.within, costs, np.inf).argmin()), within=True)
    return Choice(int(judged.bound.argmin()), within=False)


def front(costs: Floats, drops: Floats) -> list[int]:
    """Indices of the models that no other beats in both cost and drop, from the cheapest on."""
    found: list[int] = []
    for index in np.lexsort((drops, costs)):
        if not found or drops[index] < drops[found[-1]]:
            found.append(int(index))
    return found


def _curve(costs: Floats, trained: NDArray[np.bool_], drops: Floats) -> Floats:
    """(rows of drops, models): the falling curve closest to the trained models' drops, read at every model's cost."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(costs[trained], kind="stable")
    at = costs[trained][order]
    fits = [isotonic_regression(row[trained][order], increasing=False).x for row in drops]
    return np.stack([np.interp(costs, at, fit) for fit in fits])
