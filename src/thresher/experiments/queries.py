"""Whether some queries can stand for all when tokens are judged: runs that differ in nothing else, at one cost."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Row
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.recipe import spread
from thresher.experiments.table1 import check
from thresher.experiments.trained import measure_trained as measure
from thresher.experiments.widths import KEY, by_line, keys

__all__ = ["KEY", "check", "keys", "measure", "publish"]

ALL = "all"


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config) if rows else "Not measured yet.")
    return [page]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for each task, means over seeds, and the leads over all of them."""
    variants = list(config["variants"])
    few = [variant for variant in variants if variant != ALL]
    whole = {line: own for line, own in by_line(rows).items() if len(own) == len(variants)}
    lines = []
    for task, about in config["tasks"].items():
        own = [row for row in rows if row["task"] == task]
        if own:
            dense = list({row["seed"]: 100 * row["dense"] for row in own}.values())  # a seed's rows share it
            there = [line for (of, *_), line in whole.items() if of == task]
            cells = [_scores([row for row in own if row["variant"] == variant]) for variant in variants]
            lines.append([about["name"], spread(dense, ".2f"), *cells, *(_lead(there, variant) for variant in few)])
    lines.append(["**all**", *[""] * (1 + len(variants)), *(_lead(list(whole.values()), variant) for variant in few)])
    return markdown_table(["task", "dense", *variants, *(f"lead of {variant}" for variant in few)], lines)


def _scores(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    score = spread([100 * row["pruned"] for row in rows], ".2f")
    return f"{score} @ {mean(row['relative_flops'] for row in rows):.3f}"


def _lead(lines: Sequence[dict[str, Row]], variant: str) -> str:
    """Over tasks and seeds that have all variants."""
    found = spread([100 * (own[variant]["pruned"] - own[ALL]["pruned"]) for own in lines], "+.2f")
    return f"{found} ({len(lines)})" if found else ""
