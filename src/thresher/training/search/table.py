"""What a search has measured so far, judged together, and the answer in numbers and words."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from thresher.config import SearchConfig
from thresher.tasks.bootstrap import Floats, drawn_drops, observed_drop
from thresher.training.search.choice import Choice, Judged, choose, front, judge
from thresher.training.search.trial import Point, Setup, baseline, labels_of, points_of


@dataclass(frozen=True)
class Table:
    """All that was measured so far. drops, low and high (95% interval): (points,)."""

    points: list[Point]
    drops: Floats
    low: Floats
    high: Floats
    judged: Judged
    choice: Choice
    front: list[int]


def measured(setup: Setup, settings: SearchConfig) -> Table:
    """Every finished trial's points, judged together."""
    dense, _ = baseline(setup)
    places = sorted((setup.folder / "trials").iterdir())
    points = [point for place in places for point in points_of(setup, float(place.name))]
    labels, spec = labels_of(setup.task), setup.task.spec
    logits = [point.logits for point in points]
    drops = np.array([observed_drop(spec, dense, one, labels) for one in logits])
    draws = drawn_drops(spec, dense, logits, labels)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    costs = np.array([point.relative_flops for point in points])
    trained = np.array([point.trained for point in points])
    judged = judge(
        costs, trained, drops, draws, rows=len(labels), limit=settings.max_drop, confidence=settings.confidence
    )
    return Table(points, drops, low, high, judged, choose(costs, judged), front(costs, drops))


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
                "smoothed_drop": float(table.judged.curve[i]),
                "bound": float(table.judged.bound[i]),
                "within": bool(table.judged.within[i]),
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
        f"{100 * table.points[i].relative_flops:.1f}% of the FLOPs; drop on {rows:,} selection rows "
        f"{100 * table.drops[i]:+.2f} points, 95% interval {100 * table.low[i]:+.2f} to {100 * table.high[i]:+.2f}"
    )
    bound = f"{100 * table.judged.bound[i]:.2f}"
    if table.choice.within:
        return f"{said}; at most {bound} with {settings.confidence:.0%} confidence, within the limit of {limit}."
    return (
        f"{said}. No model is within {limit} points with {settings.confidence:.0%} confidence; this one comes nearest, "
        f"at most {bound}. More selection rows, more trials, a lower --confidence or a larger --max-drop may help."
    )
