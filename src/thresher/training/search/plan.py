"""Where to train next: down from a loose target until quality breaks, then into the gap where it breaks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEP = 0.86  # of one rung to the next: 0.60, 0.52, 0.44, 0.38, ...
NEAR_ENOUGH = 0.95  # two neighbouring targets this close need no third between them
LOOSEST = 0.95


@dataclass(frozen=True)
class Tried:
    """A target that was trained, or what scaled thresholds cost, and whether the drop to expect is within the limit.

    Not whether it surely is: where the drop crosses the limit is best found without the caution of the final choice.
    """

    target: float
    good: bool


def next_target(tried: Sequence[Tried], pending: Sequence[float], *, lowest: float) -> float | None:
    """The target to train next, None when another would tell nothing new. `pending` ones are being trained."""
    known = sorted([trial.target for trial in tried] + list(pending))
    good = [trial.target for trial in tried if trial.good]
    if len(good) == len(tried):
        step = max(known[0] * STEP, lowest)
        return round(step, 4) if step <= known[0] * NEAR_ENOUGH else None
    if not good:
        looser = min(LOOSEST, known[-1] / STEP)
        return round(looser, 4) if known[-1] <= looser * NEAR_ENOUGH else None
    best = min(good)
    cheaper = [target for target in known if target < best]
    if not cheaper or cheaper[-1] > best * NEAR_ENOUGH:
        return None
    return round(math.sqrt(cheaper[-1] * best), 4)


def start_for(target: float, trained: Sequence[float]) -> float:
    """Which trial to train on from: the nearest looser one, else the nearest of all."""
    looser = [other for other in trained if other >= target]
    return min(looser) if looser else max(trained)
