"""What a search has measured so far, judged together, and the answer in numbers and words."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from thresher.config import SearchConfig
from thresher.tasks.bootstrap import Floats, drawn_drops, observed_drop
from thresher.tasks.said import drop_or_gain
from thresher.tasks.splits import counted
from thresher.training.search.choice import Choice, choose, front, upper_bounds
from thresher.training.search.expected import expected_drops
from thresher.training.search.trial import Point, Setup, baseline, points_of, truth_of


@dataclass(frozen=True)
class Table:
    """All that was measured so far. (points,): plain drops with their 95% interval, low to high; the drops to expect,
    and the bounds which these stay below at the confidence asked for."""

    points: list[Point]
    drops: Floats
    low: Floats
    high: Floats
    expected: Floats
    bounds: Floats
    choice: Choice
    front: list[int]


def measured(setup: Setup, settings: SearchConfig) -> Table:
    """Every finished trial's points, judged together."""
    dense, _ = baseline(setup)
    places = sorted((setup.folder / "trials").iterdir())
    points = [point for place in places for point in points_of(setup, float(place.name))]
    labels, spec = truth_of(setup, dense), setup.task.spec
    logits = [point.logits for point in points]
    drops = np.array([observed_drop(spec, dense, one, labels) for one in logits])
    low, high = np.quantile(drawn_drops(spec, dense, logits, labels), [0.025, 0.975], axis=0)
    expected = expected_drops(spec, dense, logits, labels)
    bounds = upper_bounds(expected, rows=labels.units, confidence=settings.confidence)
    costs = np.array([point.relative_flops for point in points])
    choice = choose(costs, bounds, limit=settings.max_drop)
    return Table(points, drops, low, high, expected.drops, bounds, choice, front(costs, drops))


def hopeless_score(setup: Setup, settings: SearchConfig, table: Table) -> float:
    """A score that rows alone do not explain: below the limit by three standard errors of a drop, at least 2 points."""
    error = float(((table.high - table.low) / 3.92).max())
    return float(baseline(setup)[1]["metrics"]["score"] - settings.max_drop - max(3 * error, 0.02))


def report(setup: Setup, settings: SearchConfig, table: Table, *, given_up: list[float]) -> dict[str, Any]:
    """What pareto.json holds: every measured point, dearest first, and the choice in words."""
    _, dense = baseline(setup)
    points: list[dict[str, Any]] = []
    for i in sorted(range(len(table.points)), key=lambda index: -table.points[index].relative_flops):
        point = table.points[i]
        points.append(
            {
                "target": point.target,
                "dial": point.factor,
                "trained_from": point.start,
                "relative_flops": point.relative_flops,
                "score": point.metrics["score"],
                "metrics": point.metrics,
                "drop": float(table.drops[i]),
                "interval": [float(table.low[i]), float(table.high[i])],
                "expected_drop": float(table.expected[i]),
                "bound": float(table.bounds[i]),
                "within": bool(table.bounds[i] <= settings.max_drop),
                "front": i in table.front,
                "chosen": i == table.choice.index,
                "seconds": point.seconds if point.trained else 0.0,
            }
        )
    return {
        "task": setup.task.spec.name,
        "settings": asdict(settings),
        "selection_rows": len(setup.task.selection),
        "dense": dense["metrics"],
        "points": points,
        "given_up": given_up,
        "within": table.choice.within,
        "statement": statement(table, settings, rows=len(setup.task.selection)),
        "seconds": round(sum(point["seconds"] for point in points), 1),
    }


def statement(table: Table, settings: SearchConfig, *, rows: int) -> str:
    """The choice and how sure it is, in one sentence or two."""
    i, limit = table.choice.index, f"{100 * settings.max_drop:g}"
    said = (
        f"{100 * table.points[i].relative_flops:.1f}% of the FLOPs; {drop_or_gain(table.drops[i])} on "
        f"{counted(rows, 'selection row')}, 95% interval of the drop {100 * table.low[i]:+.2f} to "
        f"{100 * table.high[i]:+.2f} (paired bootstrap); {drop_or_gain(table.expected[i])} to be expected of other rows"
    )
    bound = f"a drop of at most {100 * table.bounds[i]:.2f}"
    if table.choice.within:
        return f"{said}, {bound} with {settings.confidence:.0%} confidence, within the limit of {limit}."
    unit = "point" if limit == "1" else "points"
    return (
        f"{said}. No model is within {limit} {unit} with {settings.confidence:.0%} confidence; this one comes nearest, "
        f"{bound}. More selection rows, more trials, a lower --confidence or a larger --max-drop may help."
    )
