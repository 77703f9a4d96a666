"""Where to train next: down from a loose target until quality breaks, then into the gap where it breaks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEP = 0.86  # of one rung to the next: 0.60, 0.52, 0.44, 0.38, ...
NEAR_ENOUGH = 0.95  # two neighbouring targets this close need no third between them
LOOSEST = 0.95


@dataclass(frozen=True)
class Tried:
    """A trained target: whether the smoothed drop is within the limit (promising), and its upper bound too (within)."""

    target: float
    promising: bool
    within: bool


def next_target(tried: Sequence[Tried], pending: Sequence[float], *, lowest: float) -> float | None:
    """The target to train next, None when another would tell nothing new. `pending` ones are being trained.

    A promising trial without certainty does not stop the descent: the next one trains on and may gain what is missing.
    """
    known = sorted([trial.target for trial in tried] + list(pending))
    passing = [trial.target for trial in tried if trial.within]
    if all(trial.promising for trial in tried):
        step = max(known[0] * STEP, lowest)
        if step <= known[0] * NEAR_ENOUGH:
            return round(step, 4)
    if not passing:
        looser = min(LOOSEST, known[-1] / STEP)
        return round(looser, 4) if known[-1] <= looser * NEAR_ENOUGH else None
    best = min(passing)
    cheaper = [target for target in known if target < best]
    if not cheaper or cheaper[-1] > best * NEAR_ENOUGH:
        return None
    return round(math.sqrt(cheaper[-1] * best), 4)


def start_for(target: float, trained: Sequence[float]) -> float:
    """Which trial to train on from: the nearest looser one, else the nearest of all."""
    looser = [other for other in trained if other >= target]
    return min(looser) if looser else max(trained)
