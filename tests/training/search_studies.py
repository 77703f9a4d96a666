"""Simulated searches, to see what the rule of choice keeps and what it costs. The table of docs/search.md:

python -m tests.training.search_studies
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from thresher.training.search.choice import choose, judge

COSTS = 0.6 * 0.88 ** np.arange(9)
LIMIT = 0.01
CONFIDENCES = (0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass
class Tally:
    """Shares of studies: the chosen model's true drop, and that on other rows, within the limit; a model that passes.
    `cost` is that of the choice over that of the cheapest model truly within the limit, mean over the studies."""

    true: float = 0.0
    other_rows: float = 0.0
    passes: float = 0.0
    cost: float = 0.0


def simulate(
    rows: int, *, other: int, studies: int, confidences: tuple[float, ...] = CONFIDENCES, changed: float = 0.05
) -> list[Tally]:
    """Nine models on a curve that breaks somewhere, training noise of 0.3 points, rows that models lose together.

    `changed` is the share of predictions that pruning changes where it costs nothing.
    """
    draw = np.random.default_rng(rows)
    tallies = [Tally() for _ in confidences]
    for _ in range(studies):
        true = 0.004 * np.exp((draw.uniform(0.3, 0.5) - COSTS) / 0.05) + draw.normal(0, 0.003, 9)
        losses = _losses(draw, true, rows, changed=changed)
        counts = np.stack([np.bincount(draw.integers(rows, size=rows), minlength=rows) for _ in range(300)])
        seen, draws = losses.mean(axis=0), counts @ losses / rows
        elsewhere = _losses(draw, true, other, changed=changed).mean(axis=0)
        good = COSTS[true <= LIMIT]
        for tally, confidence in zip(tallies, confidences, strict=True):
            judged = judge(COSTS, np.ones(9, bool), seen, draws, rows=rows, limit=LIMIT, confidence=confidence)
            choice = choose(COSTS, judged)
            tally.true += float(true[choice.index] <= LIMIT) / studies
            tally.other_rows += float(elsewhere[choice.index] <= LIMIT) / studies
            tally.passes += choice.within / studies
            tally.cost += float(COSTS[choice.index] / (good.min() if len(good) else COSTS[0])) / studies
    return tallies


def _losses(draw: np.random.Generator, true: np.ndarray, rows: int, *, changed: float) -> np.ndarray:
    """(rows, models): 1 where the dense model is right and the pruned one wrong, -1 the other way round."""
    share = changed + np.abs(true)
    pull = 0.8 * draw.normal(size=(rows, 1)) + 0.6 * draw.normal(size=(rows, 9))
    return (pull < ndtri((share + true) / 2)).astype(float) - (pull > -ndtri((share - true) / 2))


def table() -> str:
    lines = [
        "| selection rows | confidence | a model passes | true drop within 1 | drop on other rows within 1 | cost |",
        "|---|---|---|---|---|---|",
    ]
    for rows, other in ((367, 408), (2000, 872)):
        for confidence, tally in zip(CONFIDENCES, simulate(rows, other=other, studies=400), strict=True):
            shares = " | ".join(f"{100 * share:.0f}%" for share in (tally.passes, tally.true, tally.other_rows))
            lines.append(f"| {rows:,} | {confidence} | {shares} | {tally.cost:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
