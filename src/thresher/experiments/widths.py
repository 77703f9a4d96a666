"""What a race between shapes is worth: it beside runs that have one shape from the first step on."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.trained import measure_trained as measure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "variant", "target", "seed")
SCORES = ("selection_score", "pruned")


def keys(config: dict[str, Any]) -> list[Key]:
    """Neighbours are of different tasks: rows of one task wait for the same dense model."""
    return [
        {"task": task, "model": model, "method": "learned", "variant": variant, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for target in config["targets"]
        for variant in config["variants"]
        for task in config["tasks"]
    ]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    return [page]


def winner(row: Row) -> str:
    """The width that a race went on with."""
    found: dict[str, float] = row["race"][-1]["divergence_by_width"]
    return min(found, key=lambda width: found[width])


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for each task, target and seed, and the means over the lines that have all variants."""
    variants = list(config["variants"])
    lines, whole = [], []
    for place in dict.fromkeys((row["task"], row["target"], row["seed"]) for row in rows):
        own = {row["variant"]: row for row in rows if (row["task"], row["target"], row["seed"]) == place}
        took = [winner(row) for row in own.values() if "race" in row]
        cells = [_scores([own[variant]]) if variant in own else "" for variant in variants]
        task, target, seed = place
        lines.append([config["tasks"][task]["name"], f"{target:g}", str(seed), *cells, *(took or [""])])
        if len(own) == len(variants):
            whole.append(own)
    if whole:
        cells = [_scores([own[variant] for own in whole]) for variant in variants]
        lines.append([f"**mean of {len(whole)}**", "", "", *cells, ""])
    return markdown_table(["task", "target", "seed", *variants, "the race took"], lines)


def _scores(rows: Sequence[Row]) -> str:
    return " / ".join(f"{100 * mean(row[name] for row in rows):.2f}" for name in SCORES)
