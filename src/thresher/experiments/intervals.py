"""Intervals of means over tasks, seeds and costs, or over seeds and test rows: the bootstrap, with numpy alone."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from thresher.experiments.answers import Answers
from thresher.tasks.bootstrap import drawn_counts, scores
from thresher.tasks.task import TaskSpec

DRAWS = 2000
# Of Student's t, 97.5%, for so many seeds: how many standard errors a mean of so few is known to.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57}
MIDDLE = (0.025, 0.975)


def drawn_interval(leads: Sequence[Sequence[Sequence[float]]], *, draws: int = DRAWS) -> tuple[float, float]:
    """The central 95% of the means of draws from leads[task][seed][cost]: tasks are drawn with replacement, then seeds
    of each, then costs of each seed, as what is not measured could have come out otherwise on every level."""
    chance = np.random.default_rng(0)
    means = []
    for _ in range(draws):
        tasks = chance.integers(len(leads), size=len(leads))
        means.append(np.mean([_drawn(leads[task], chance) for task in tasks]))
    low, high = np.quantile(means, MIDDLE)
    return float(low), float(high)


def _drawn(seeds: Sequence[Sequence[float]], chance: np.random.Generator) -> float:
    own = [seeds[seed] for seed in chance.integers(len(seeds), size=len(seeds))]
    return float(np.mean([np.mean(chance.choice(costs, size=len(costs))) for costs in own]))


def of_seeds(values: Sequence[float]) -> tuple[float, float] | None:
    """Of a mean over seeds, by Student's t; None for one seed."""
    half = half_of_seeds(values)
    return None if half is None else (mean(values) - half, mean(values) + half)


def half_of_seeds(values: Sequence[float]) -> float | None:
    """Half of that interval."""
    count = len(values)
    return STUDENT[count] * stdev(values) / math.sqrt(count) if count in STUDENT else None


def lost_interval(
    spec: TaskSpec, pairs: Sequence[tuple[Answers, Answers]], *, draws: int = DRAWS
) -> tuple[float, float] | None:
    """The central 95% of what pruned models lose against their controls, in percent of the control's score: seeds are
    drawn with replacement, and test rows, the same ones for all models. pairs: (pruned, control) of each seed. None
    where they are not of the same rows."""
    truth = pairs[0][0].truth
    if not all(np.array_equal(truth, one.truth) for pair in pairs for one in pair):
        return None
    losses = []
    for counts in drawn_counts(len(truth), draws=draws, seed=0):
        of_seed = [[scores(spec, _outputs(spec, one), truth, counts) for one in pair] for pair in pairs]
        losses.append(np.stack([1 - pruned / control for pruned, control in of_seed], axis=1))
    found = np.concatenate(losses)  # (draws, seeds)
    taken = np.random.default_rng(1).integers(len(pairs), size=found.shape)
    low, high = np.quantile(np.take_along_axis(found, taken, axis=1).mean(axis=1), MIDDLE)
    return 100 * float(low), 100 * float(high)


def _outputs(spec: TaskSpec, answers: Answers) -> NDArray[np.float64]:
    """(rows, outputs) with the predicted class ahead of all others, or the value."""
    if spec.means == "value":
        return answers.said[:, None]
    ahead: NDArray[np.float64] = np.eye(len(spec.labels))[answers.said.astype(int)]
    return ahead
