"""Embedders distilled on texts alone: STS-B's Spearman correlation, and how near embeddings stay to the dense ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments import distilled
from thresher.experiments.distilled import KEY, Kind, keys
from thresher.experiments.embedding_rows import judging
from thresher.experiments.experiment import Row
from thresher.experiments.publish import markdown_table, write_between_marks

__all__ = ["KEY", "check", "folders", "keys", "measure", "publish"]

KIND = Kind("embed", ("--embed", "--pair-column", "pair"), judging, "spearman")


check, measure = partial(distilled.check, KIND), partial(distilled.measure, KIND)
folders = partial(distilled.folders, KIND)


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows))
    return [page]


def table(rows: Sequence[Row]) -> str:
    """One line for each model and target: the mean of its seeds."""
    lines = []
    for model, target in dict.fromkeys((row["model"], row["target"]) for row in rows):
        own = [row for row in rows if (row["model"], row["target"]) == (model, target)]
        dense, pruned = (100 * mean(row[name] for row in own) for name in ("dense", "pruned"))
        near = [mean(row["metrics_pruned"][name] for row in own) for name in ("cosine", "neighbours")]
        flops = mean(row["relative_flops"] for row in own)
        numbers = [f"{dense:.2f}", f"{pruned:.2f}", f"{pruned - dense:+.2f}", *(f"{value:.3f}" for value in near)]
        about = [model, str(rejoined(own[0])), str(len(own))]
        lines.append([*about, *numbers, f"{flops:.3f}", f"{1 / flops:.2f}x"])
    header = ["model", "layers rejoined", "seeds", "dense", "pruned", "difference", "cosine to dense"]
    return markdown_table([*header, "same nearest neighbour", "relative FLOPs", "fewer FLOPs"], lines)


def rejoined(row: Row) -> int:
    """Layers at the end that had all tokens."""
    whole = [kept >= row["mean_length"] - 1e-3 for kept in row["kept_per_layer"]]
    return next((number for number, one in enumerate(reversed(whole)) if not one), 0)
