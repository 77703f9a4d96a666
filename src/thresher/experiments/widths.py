"""What a race between shapes is worth: it beside runs that have one shape from the first step on."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.recipe import spread
from thresher.experiments.table1 import check
from thresher.experiments.trained import measure_trained as measure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "variant", "target", "seed")
SCORES = ("selection_score", "pruned")
RACE = "race"
BEST = "best of the widths on selection rows"


def keys(config: dict[str, Any]) -> list[Key]:
    """Neighbours are of different tasks: rows of one task wait for the same dense model."""
    return [
        {"task": task, "model": model, "method": "thresher", "variant": variant, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for target in config["targets"]
        for variant in config["variants"]
        for task in config["tasks"]
    ]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "leads", leads(rows, config))
    write_between_marks(page, "table", table(rows, config))
    return [page]


def winner(row: Row) -> str:
    """The width that a race went on with."""
    found: dict[str, float] = row["race"][-1]["divergence_by_width"]
    return min(found, key=lambda width: found[width])


def by_line(rows: Sequence[Row]) -> dict[tuple[str, float, int], dict[str, Row]]:
    """The runs that differ in nothing but the variant."""
    found: dict[tuple[str, float, int], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["task"], row["target"], row["seed"]), {})[row["variant"]] = row
    return found


def complete(rows: Sequence[Row], config: dict[str, Any]) -> dict[tuple[str, float, int], dict[str, Row]]:
    """The lines that have all variants. Beside them stands what training every width would give: of the runs with one
    shape, the one that selection rows would take."""
    found = {}
    for line, own in by_line(rows).items():
        if len(own) == len(config["variants"]):
            single = [row for variant, row in own.items() if variant != RACE]
            found[line] = {**own, BEST: max(single, key=lambda row: float(row["selection_score"]))}
    return found


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for each task, target and seed, and the means over those that have all variants."""
    variants = list(config["variants"])
    lines = []
    whole = complete(rows, config)
    for (task, target, seed), own in (by_line(rows) | whole).items():
        cells = [_scores([own[variant]]) if variant in own else "" for variant in (*variants, BEST)]
        took = winner(own[RACE]) if RACE in own else ""
        lines.append([config["tasks"][task]["name"], f"{target:g}", str(seed), *cells, took])
    if whole:
        means = [_scores([own[name] for own in whole.values()]) for name in (*variants, BEST)]
        lines.append([f"**mean of {len(whole)}**", "", "", *means, ""])
    return markdown_table(["task", "target", "seed", *variants, BEST, "the race took"], lines)


def leads(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """How far the race is ahead of each, task by task, over the lines that have all variants."""
    whole = complete(rows, config)
    rivals = [*(variant for variant in config["variants"] if variant != RACE), BEST]
    of_task = {
        about["name"]: [own for (of, *_), own in whole.items() if of == task] for task, about in config["tasks"].items()
    }
    lines = []
    for name, found in {**of_task, "**all**": list(whole.values())}.items():
        if found:
            lines.append([name, str(len(found)), *(_lead(found, rival) for rival in rivals)])
    return markdown_table(["lead of the race over", "lines", *rivals], lines)


def _scores(rows: Sequence[Row]) -> str:
    return " / ".join(f"{100 * mean(row[name] for row in rows):.2f}" for name in SCORES)


def _lead(lines: Sequence[dict[str, Row]], rival: str) -> str:
    return " / ".join(spread([100 * (own[RACE][name] - own[rival][name]) for own in lines], "+.2f") for name in SCORES)
