"""Quality against relative FLOPs of every method on every task: the paper's main figure."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from thresher.experiments.experiment import Key, Row, Setting, key_of
from thresher.experiments.fronts import measure_on_front
from thresher.experiments.intervals import drawn_interval
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.runner import read_records
from thresher.experiments.table1 import check
from thresher.experiments.trained import measure_trained
from thresher.report.figures import INK, pyplot_in_style, save_figure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
COLOURS = {
    "thresher": "#d1495b",
    "ltp": "#56b4e9",
    "manual": "#edae49",
    "spatten": "#1f5fa8",
    "lat": "#66a182",
    "collapse": "#8d6a9f",
    "power": "#7f7f7f",
    "random": "#bbbbbb",
}
MARKS = dict(zip(COLOURS, "os^DvP*X", strict=True))  # lines are told apart without colours, too
REPEATED = "widths/records.jsonl"  # its races are runs of `thresher` with the same settings
CONTROL = "dense"  # trained on without pruning: one point, at full cost
OURS = "thresher"
BEHIND = -0.3  # points: more than that, no task's mean lead is to be behind


def keys(config: dict[str, Any]) -> list[Key]:
    """[compared] has each method's seeds. The control has one target; all others have all of them. Neighbours are of
    different tasks: rows of one task wait for the same dense model. LAT trains longest and so goes first."""
    return [
        {"task": task, "model": model, "method": method, "target": target, "seed": seed}
        for seed in sorted({seed for seeds in config["compared"].values() for seed in seeds})
        for model in config["models"]
        for method, seeds in sorted(config["compared"].items(), key=lambda each: each[0] != "lat")
        if seed in seeds
        for target in ([1.0] if method == CONTROL else config["targets"])
        for task in config["tasks"]
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    return measure_on_front(key, setting) if key["method"] == "lat" else measure_trained(key, setting)


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    write_between_marks(page, "verdict", verdict(rows, config))
    write_between_marks(page, "repeated", verdict(repeated(rows, read_records(folder.parent / REPEATED)), config))
    return [page, *draw(rows, folder, config)]


def whole_seeds(rows: Sequence[Row], task: str, method: str) -> list[int]:
    """The seeds that a method has at all of its targets: a mean over others at one cost than at the next is no line."""
    targets: dict[int, set[float]] = {}
    for row in rows:
        if (row["task"], row["method"]) == (task, method):
            targets.setdefault(row["seed"], set()).add(row["target"])
    every = set().union(*targets.values())
    return sorted(seed for seed, own in targets.items() if own == every)


def points(
    rows: Sequence[Row], task: str, method: str, seeds: Sequence[int] | None = None
) -> list[tuple[float, float]]:
    """(relative FLOPs, score) of a method, the mean of these seeds, or of all that it has, from the cheapest on."""
    taken = whole_seeds(rows, task, method) if seeds is None else seeds
    own = [row for row in rows if (row["task"], row["method"]) == (task, method) and row["seed"] in taken]
    found = []
    for target in sorted({row["target"] for row in own}):
        same = [row for row in own if row["target"] == target]
        found.append((mean(row["relative_flops"] for row in same), mean(row["pruned"] for row in same)))
    return sorted(found)


def common_seeds(rows: Sequence[Row], task: str, rival: str) -> list[int]:
    """Seeds that both method thresher and a rival have: only these are compared."""
    return sorted(set(whole_seeds(rows, task, OURS)) & set(whole_seeds(rows, task, rival)))


def at_cost(line: Sequence[tuple[float, float]], cost: float) -> float | None:
    """The score of a method at a cost between its measured ones; None outside them."""
    costs, scores = zip(*line, strict=True)
    return float(np.interp(cost, costs, scores)) if costs[0] <= cost <= costs[-1] else None


def lead(rows: Sequence[Row], task: str, rival: str, seeds: Sequence[int] | None = None) -> list[float]:
    """Points by which method thresher leads a rival, at every measured cost of either that both cover: the means of
    their common seeds, or of some of them."""
    seeds = common_seeds(rows, task, rival) if seeds is None else seeds
    ours, theirs = (points(rows, task, method, seeds) for method in (OURS, rival))
    if not ours or not theirs:
        return []
    found = []
    for cost, _ in sorted([*ours, *theirs]):
        mine, other = at_cost(ours, cost), at_cost(theirs, cost)
        if mine is not None and other is not None:
            found.append(100 * (mine - other))
    return found


def interval(rows: Sequence[Row], tasks: Sequence[str], rival: str) -> tuple[float, float]:
    """Of the mean lead: 95% of the draws of tasks, then of each one's seeds, then of the costs of each seed."""
    leads = [
        [found for seed in common_seeds(rows, task, rival) if (found := lead(rows, task, rival, [seed]))]
        for task in tasks
    ]
    low, high = drawn_interval([of_task for of_task in leads if of_task])
    return low, high


def verdict(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """Smallest and mean lead of method thresher at matched cost, the tasks' mean of the latter, and how sure it is."""
    rivals = [method for method in config["compared"] if method not in (OURS, CONTROL)]
    leads = {task: [lead(rows, task, rival) for rival in rivals] for task in config["tasks"]}
    lines = [
        [config["tasks"][task]["name"], *(f"{min(one):+.2f} / {mean(one):+.2f}" if one else "" for one in found)]
        for task, found in leads.items()
    ]
    sure: list[str] = []
    if all(one for found in leads.values() for one in found):
        means = [mean(mean(one) for one in column) for column in zip(*leads.values(), strict=True)]
        lines.append(["**mean of the tasks**", *(f"{value:+.2f}" for value in means)])
        between = [interval(rows, list(leads), rival) for rival in rivals]
        lines.append(["95% interval", *(f"{low:+.2f} to {high:+.2f}" for low, high in between)])
        sure = [rival for rival, (low, _) in zip(rivals, between, strict=True) if low > 0]
    lines.append(["seeds in common", *(_counts(rows, list(config["tasks"]), rival) for rival in rivals)])
    table = markdown_table(["lead of thresher at matched cost, least / mean", *rivals], lines)
    return f"{table}\n\n{_goal(leads, rivals, sure, config)}"


def _counts(rows: Sequence[Row], tasks: Sequence[str], rival: str) -> str:
    found = {len(common_seeds(rows, task, rival)) for task in tasks}
    return " to ".join(map(str, sorted({min(found), max(found)})))


def _goal(
    leads: dict[str, list[list[float]]], rivals: Sequence[str], sure: Sequence[str], config: dict[str, Any]
) -> str:
    """What was aimed at, and where it is missed."""
    unsure = [rival for rival in rivals if rival not in sure]
    behind = [
        f"{config['tasks'][task]['name']} ({rival}, {mean(one):+.2f})"
        for task, found in leads.items()
        for rival, one in zip(rivals, found, strict=True)
        if one and mean(one) < BEHIND
    ]
    first = "met" if not unsure else f"missed for {', '.join(unsure)}"
    second = "met" if not behind else f"missed on {', '.join(behind)}"
    return (
        f"Goals: a mean lead over every rival whose interval is above zero, **{first}**; no task whose mean lead is "
        f"below {BEHIND:g}, **{second}**."
    )


def repeated(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """The rows with their repetitions in place of those that have one: what chance does to the verdict."""
    again = {key_of(row, KEY): row for row in others if row["variant"] == "race"}
    return [again.get(key_of(row, KEY), row) for row in rows]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    lines = []
    for task, about in config["tasks"].items():
        own = [row for row in rows if row["task"] == task]
        if not own:
            continue
        dense = 100 * mean(row["dense"] for row in own)
        for method in config["compared"]:
            cells = [f"{100 * score:.2f} @ {cost:.3f}" for cost, score in points(rows, task, method)]
            if cells:
                seeds = str(len(whole_seeds(rows, task, method)))
                lines.append([about["name"], f"{dense:.2f}", method, seeds, ", ".join(cells)])
    return markdown_table(["task", "dense", "method", "seeds", "score @ relative FLOPs"], lines)


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    pyplot = pyplot_in_style()
    tasks = [task for task in config["tasks"] if any(row["task"] == task for row in rows)]
    figure, grid = pyplot.subplots(
        -(-len(tasks) // 3),
        min(3, len(tasks)),
        figsize=(12, 3.6 * -(-len(tasks) // 3)),
        layout="constrained",
        squeeze=False,
    )
    for axes in grid.flat[len(tasks) :]:
        axes.set_visible(False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        dense = 100 * mean(row["dense"] for row in rows if row["task"] == task)
        for name, height, style in (("dense", dense, "-"), ("dense - 1%", 0.99 * dense, (0, (4, 3)))):
            axes.axhline(height, color=INK, linewidth=0.8, linestyle=style, label=name)
        for method in config["compared"]:
            line = points(rows, task, method)
            if line and method != CONTROL:
                costs, scores = zip(*line, strict=True)
                wide = 2.2 if method == "thresher" else 1.3
                axes.plot(
                    costs,
                    [100 * s for s in scores],
                    color=COLOURS[method],
                    linewidth=wide,
                    marker=MARKS[method],
                    markersize=5,
                    label=method,
                )
        axes.set_title(config["tasks"][task]["name"], loc="left", fontweight="bold", color=INK)
        axes.set_xlabel("relative FLOPs")
    for axes in grid[:, 0]:
        axes.set_ylabel("score")
    lines = {name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    named = {name: lines[name] for name in ("dense", "dense - 1%", *config["compared"]) if name in lines}
    figure.legend(named.values(), named, loc="outside upper center", ncols=max(1, len(named)), frameon=False)
    files = save_figure(figure, folder, "tradeoff")
    pyplot.close(figure)
    return files
