"""Tokens left after every layer, for texts of all lengths: the paper's figure of trajectories."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.finished import traced
from thresher.experiments.publish import as_listed, markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.report.figures import INK, pyplot_in_style, save_figure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
COLUMNS = ("task", "method", "accuracy", "relative FLOPs", "tokens per layer", "fewer than LAT", "paper (RoBERTa-base)")


def keys(config: dict[str, Any]) -> list[Key]:
    """LAT trains longest and so goes first. Neighbours are of different tasks: rows of one wait for its dense model."""
    return [
        {"task": task, "model": model, "method": method, "target": config["target"], "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for method in sorted(config["compared"], key=lambda method: method != "lat")
        for task in config["tasks"]
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    found = traced(key, setting)
    if found is None:
        return None
    chosen = evenly(found.tokens[:, 0], setting.config["samples"])
    return {
        **found.about,
        "samples": found.tokens[chosen].tolist(),  # each: its length, then what every layer keeps
        "mean": found.tokens.mean(axis=0).tolist(),
        "counts": found.manifest.get("rule", {}).get("counts"),  # LAT's lengths, the same for every text
    }


def evenly(lengths: Any, samples: int) -> Any:
    """Row numbers at even distances after sorting by length, from the shortest to the longest."""
    order = np.argsort(lengths, kind="stable")
    return order[np.linspace(0, len(order) - 1, samples).round().astype(int)]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page, rows = folder / "README.md", as_listed(rows, config)
    write_between_marks(page, "table", table(rows, config))
    return [page, *draw(rows, folder, config)]


def per_layer(row: Row) -> float:
    """Tokens that a layer reads, the mean over layers; what the last one keeps is read by the head alone."""
    return float(np.mean(row["mean"][:-1]))


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    lines = []
    for row in rows:
        about = config["tasks"][row["task"]]
        numbers = [f"{100 * row['accuracy']:.2f}", f"{row['relative_flops']:.3f}", f"{per_layer(row):.1f}"]
        lat = _of(rows, row["task"], "lat")
        fewer = ["", ""]
        if row["method"] == "thresher" and lat is not None:
            fewer = [f"{100 * (1 - per_layer(row) / per_layer(lat)):.1f}%", about.get("paper", "")]
        lines.append([about["name"], row["method"], *numbers, *fewer])
    return markdown_table(COLUMNS, lines)


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A panel for each task: one line per sample, darker where the text is longer; the mean; LAT's lengths."""
    pyplot = pyplot_in_style()
    tasks = [task for task in config["tasks"] if _of(rows, task, "thresher")]
    figure, grid = pyplot.subplots(
        1, max(1, len(tasks)), figsize=(5.6 * max(1, len(tasks)), 4.2), layout="constrained", squeeze=False
    )
    for axes, task in zip(grid.flat, tasks, strict=False):
        ours = _of(rows, task, "thresher")
        assert ours is not None  # tasks are those that have it
        _panel(axes, ours, _of(rows, task, "lat"), pyplot.get_cmap("YlGnBu"))
        axes.set_title(config["tasks"][task]["name"], loc="left", fontweight="bold", color=INK)
    grid[0, 0].set_ylabel("tokens")
    found = {name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if found:
        figure.legend(
            found.values(), found, loc="outside upper center", ncols=3 if len(tasks) > 1 else 1, frameon=False
        )
    files = save_figure(figure, folder, "trajectories")
    pyplot.close(figure)
    return files


def _panel(axes: Any, ours: Row, lat: Row | None, colours: Any) -> None:
    layers = range(len(ours["mean"]))
    samples = sorted(ours["samples"])
    for place, sample in enumerate(samples):
        shade = colours(0.3 + 0.65 * place / max(1, len(samples) - 1))
        name = f"thresher, {len(samples)} texts" if place == len(samples) // 2 else None
        axes.plot(layers, sample, color=shade, linewidth=1.3, label=name)
    axes.plot(layers, ours["mean"], color="black", linewidth=2, linestyle=":", label="thresher, mean of all rows")
    if lat and lat["counts"]:
        axes.plot(
            layers[1:],
            lat["counts"],
            color="black",
            linewidth=1.6,
            linestyle="--",
            label="LAT, the same for every text",
        )
    axes.set_xlim(0, layers[-1])
    axes.set_ylim(bottom=0)
    axes.set_xticks(layers[:: 1 if len(layers) < 8 else 2])
    axes.set_xlabel("after layer (0: the text)")


def _of(rows: Sequence[Row], task: str, method: str) -> Row | None:
    return next((row for row in rows if (row["task"], row["method"]) == (task, method)), None)
