"""How many tokens layers keep of texts that are classified right and wrong: the paper's figure of histograms."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.finished import traced
from thresher.experiments.publish import as_listed, markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.trajectories import KEY, keys
from thresher.report.figures import BLUE, INK, ORANGE, pyplot_in_style, save_figure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

SIDES = (("right", BLUE), ("wrong", ORANGE))
COLUMNS = ("task", "method", "accuracy", "after layer", "tokens, right", "tokens, wrong", "correlation")
BINS = 18


def measure(key: Key, setting: Setting) -> Row | None:
    """For the text itself and for every layer: how many rows keep 0, 1, 2... tokens, right and wrong ones apart."""
    found = traced(key, setting)
    if found is None:
        return None
    sides = {"right": found.tokens[found.right], "wrong": found.tokens[~found.right]}
    counts = {side: [np.bincount(layer).tolist() for layer in tokens.T] for side, tokens in sides.items()}
    return {**found.about, "counts": counts}


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page, rows = folder / "README.md", as_listed(rows, config)
    write_between_marks(page, "table", table(rows, config))
    return [page, *draw(rows, folder, config)]


def lengths_of(row: Row, side: str, layer: int) -> NDArray[np.int64]:
    counts = row["counts"][side][layer]
    return np.repeat(np.arange(len(counts)), counts)


def correlation(row: Row, layer: int) -> tuple[float, float] | None:
    """Between tokens and being right, with 1.96 standard errors of no correlation; None where either does not vary."""
    right, wrong = (lengths_of(row, side, layer) for side, _ in SIDES)
    tokens = np.concatenate([right, wrong])
    if not len(right) or not len(wrong) or not tokens.std():
        return None
    is_right = np.repeat([1.0, 0.0], [len(right), len(wrong)])
    return float(np.corrcoef(tokens, is_right)[0, 1]), 1.96 / float(np.sqrt(len(tokens)))


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    lines = []
    for row in rows:
        for layer in _layers(row, config):
            sides = [lengths_of(row, side, layer) for side, _ in SIDES]
            means = [f"{tokens.mean():.1f}" if len(tokens) else "" for tokens in sides]
            found = correlation(row, layer)
            said = "" if found is None else f"{found[0]:+.3f} ± {found[1]:.3f}"
            name = config["tasks"][row["task"]]["name"]
            lines.append([name, row["method"], f"{100 * row['accuracy']:.2f}", str(layer), *means, said])
    return markdown_table(COLUMNS, lines)


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A line of panels for each run, a panel for each layer asked for."""
    pyplot = pyplot_in_style()
    columns = len(config["layers"])
    figure, grid = pyplot.subplots(
        len(rows), columns, figsize=(2.5 * columns, 2.1 * len(rows) + 0.5), layout="constrained", squeeze=False
    )
    for line, row in zip(grid, rows, strict=True):
        layers = _layers(row, config)
        for axes in line[len(layers) :]:
            axes.set_visible(False)
        for axes, layer in zip(line, layers, strict=False):
            _panel(axes, row, layer)
            axes.set_title("the text" if layer == 0 else f"after layer {layer}", loc="left", fontsize=9, color=INK)
        line[0].set_ylabel(f"{config['tasks'][row['task']]['name']}, {row['method']}\n% of the rows", color=INK)
    for axes in grid[-1]:
        axes.set_xlabel("tokens")
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    files = save_figure(figure, folder, "histograms")
    pyplot.close(figure)
    return files


def _panel(axes: Any, row: Row, layer: int) -> None:
    """Each side in shares of its own rows: there are many more right ones, and shapes are to be compared."""
    sides = {side: lengths_of(row, side, layer) for side, _ in SIDES}
    every = np.concatenate(list(sides.values()))
    end = int(np.quantile(every, 0.995)) + 2
    width = max(1, round(end / BINS))  # whole tokens, so that no bin holds more lengths than another
    edges = np.arange(0, end + width, width) - 0.5
    for side, colour in SIDES:
        tokens = sides[side]
        if not len(tokens):
            continue
        share = 100 * np.histogram(tokens, edges)[0] / len(tokens)
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.3, label=f"classified {side}")
        axes.stairs(share, edges, color=colour, linewidth=1.2)
        style = "-" if side == "right" else (0, (4, 2))
        axes.axvline(tokens.mean(), color=colour, linewidth=1.2, linestyle=style, label=f"mean, {side}")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def _layers(row: Row, config: dict[str, Any]) -> list[int]:
    """The layers asked for that the model has."""
    return [layer for layer in config["layers"] if layer < len(row["counts"]["right"])]
