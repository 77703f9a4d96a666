"""What each change to the paper's recipe brings: the default with one of them taken back, and the literal recipe."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from thresher.experiments.experiment import Key, Row
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.tradeoff import at_cost
from thresher.experiments.trained import measure_trained as measure
from thresher.report.figures import BLUE, INK, ORANGE, pyplot_in_style, save_figure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "variant", "target", "seed")
COLUMNS = (
    *("task", "variant", "seeds", "score", "relative FLOPs"),
    *("against default, same target", "default at that cost", "against default, same cost"),
)
DEFAULT = "default"


def keys(config: dict[str, Any]) -> list[Key]:
    """The default has several targets; a price, lambda, has none. Neighbours are of different tasks: rows of one task
    wait for the same dense model."""
    return [
        {
            "task": task,
            "model": model,
            "method": config["variants"][variant].get("method", "thresher"),
            "variant": variant,
            "target": target,
            "seed": seed,
        }
        for seed in config["seeds"]
        for model in config["models"]
        for variant in config["variants"]
        for target in _targets(variant, config)
        for task in config["tasks"]
    ]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    return [page, *draw(rows, folder, config)]


def same_target(rows: Sequence[Row], own: Sequence[Row]) -> list[float]:
    """Points above the default at the same target, seed by seed."""
    default = {(row["target"], row["seed"]): row["pruned"] for row in _default(rows)}
    there = [(row, default.get((row["target"], row["seed"]))) for row in own]
    return [100 * (row["pruned"] - score) for row, score in there if score is not None]


def same_cost(rows: Sequence[Row], own: Sequence[Row]) -> list[tuple[float, float]]:
    """The default's score at the row's own cost and the points above it, seed by seed, read off straight lines between
    the default's runs of that seed; seeds whose cost is outside them are left out."""
    found = []
    for row in own:
        line = sorted((r["relative_flops"], r["pruned"]) for r in _default(rows) if r["seed"] == row["seed"])
        score = at_cost(line, row["relative_flops"]) if line else None
        if score is not None:
            found.append((100 * score, 100 * (row["pruned"] - score)))
    return found


def spread(values: Sequence[float], form: str) -> str:
    """Their mean and its standard error, which one value does not have."""
    if not values:
        return ""
    error = standard_error(values)
    return format(mean(values), form) + ("" if error is None else f" ± {error:.2f}")


def standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for every variant and target, means over seeds."""
    lines = []
    for task, about in config["tasks"].items():
        of_task = [row for row in rows if row["task"] == task]
        dense = list({row["seed"]: 100 * row["dense"] for row in of_task}.values())  # a seed's rows share it
        if dense:
            lines.append([about["name"], "dense", str(len(dense)), spread(dense, ".2f"), "1.000", "", "", ""])
        for variant, target in _lines(config):
            own = [row for row in of_task if (row["variant"], row["target"]) == (variant, target)]
            if own:
                name = f"**{variant} at {target:g}**" if variant == DEFAULT else variant
                lines.append([about["name"], name, str(len(own)), *_numbers(of_task, own)])
    return markdown_table(COLUMNS, lines)


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A panel for each task, a line for each variant: the difference to the default at equal cost."""
    pyplot = pyplot_in_style()
    tasks = [task for task in config["tasks"] if any(row["task"] == task for row in rows)]
    variants = [variant for variant in config["variants"] if variant != DEFAULT]
    figure, grid = pyplot.subplots(
        1,
        len(tasks),
        figsize=(1.8 + 3.1 * len(tasks), 1.0 + 0.3 * len(variants)),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axes, task in zip(grid.flat, tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, variant in enumerate(variants):
            own = [row for row in of_task if row["variant"] == variant]
            lead = [points for _, points in same_cost(of_task, own)]
            if lead:
                colour = ORANGE if _priced(variant, config) else BLUE
                axes.errorbar(mean(lead), place, xerr=standard_error(lead), fmt="o", color=colour, capsize=3)
            elif own:
                axes.annotate("no equal cost", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_title(config["tasks"][task]["name"], loc="left", fontweight="bold", color=INK)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_xlabel("points against default, same cost, ± standard error")
    grid[0, 0].set_yticks(range(len(variants)), variants)
    grid[0, 0].set_ylim(len(variants) - 0.4, -0.6)
    files = save_figure(figure, folder, "recipe")
    pyplot.close(figure)
    return files


def _numbers(of_task: Sequence[Row], own: Sequence[Row]) -> list[str]:
    score = spread([100 * row["pruned"] for row in own], ".2f")
    cost = f"{mean(row['relative_flops'] for row in own):.3f}"
    if own[0]["variant"] == DEFAULT:
        return [score, cost, "", "", ""]
    target = spread(same_target(of_task, own), "+.2f")
    found = same_cost(of_task, own)
    if not found:
        return [score, cost, target, "outside", ""]
    there, lead = ([pair[place] for pair in found] for place in (0, 1))
    some = f" ({len(found)} of {len(own)} seeds)" if len(found) < len(own) else ""
    return [score, cost, target, f"{mean(there):.2f}", spread(lead, "+.2f") + some]


def _default(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["variant"] == DEFAULT]


def _lines(config: dict[str, Any]) -> list[tuple[str, float | None]]:
    return [(variant, target) for variant in config["variants"] for target in _targets(variant, config)]


def _targets(variant: str, config: dict[str, Any]) -> list[float | None]:
    if variant == DEFAULT:
        return list(config["targets"])
    return [None] if _priced(variant, config) else [config["target"]]


def _priced(variant: str, config: dict[str, Any]) -> bool:
    """Whether lambda sets the cost, in place of a target."""
    return "lambda_" in config["variants"][variant]
