"""A cross-encoder distilled on pairs without labels: nDCG@10 in three domains, one of them far from all training."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments import distilled
from thresher.experiments.distilled import KEY, Kind, keys
from thresher.experiments.experiment import Row
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.reranker_rows import judging

__all__ = ["KEY", "check", "folders", "keys", "measure", "publish"]

COLUMNS = ("--text-column", "query", "--pair-column", "document", "--group-column", "group")


KIND = Kind("rerank", ("--rerank", *COLUMNS), judging, "ndcg@10")


check, measure = partial(distilled.check, KIND), partial(distilled.measure, KIND)
folders = partial(distilled.folders, KIND)


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    return [page]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """One line for each domain and target: the mean of its seeds, and the worst of them."""
    lines = []
    for target, task in dict.fromkeys((row["target"], row["task"]) for row in rows):
        own = [row for row in rows if (row["target"], row["task"]) == (target, task)]
        dense, pruned = (mean(row[name] for row in own) for name in ("dense", "pruned"))
        worst = min(row["pruned"] - row["dense"] for row in own)
        flops, length = mean(row["relative_flops"] for row in own), mean(row["mean_length"] for row in own)
        numbers = [f"{dense:.4f}", f"{pruned:.4f}", f"{pruned - dense:+.4f}", f"{worst:+.4f}", f"{flops:.3f}"]
        lines.append([config["names"][task], str(len(own)), *numbers, f"{length:.0f}"])
    header = ["rows", "seeds", "dense", "pruned", "difference", "worst seed", "relative FLOPs", "tokens"]
    return markdown_table(header, lines)
