"""Lengths of training and evaluation rows, task by task: the paper's table of quantiles and KL divergence, and its
figure of the distributions."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from thresher.evaluation.lengths import length_statistics
from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.report.figures import BLUE, INK, ORANGE, pyplot_in_style, save_figure

KEY = ("tokenizer", "task", "split")
CLOSE = 1e-4  # the paper's divergences have four decimals, and the last one is not always rounded
COLUMNS = ("task", "rows, train / eval", "train Q1/Q2/Q3", "paper", "eval Q1/Q2/Q3", "paper", "KL", "paper", "")


def check(setting: Setting) -> None:
    setting.data_folder()
    for name in setting.config["tokenizers"]:
        setting.model(name)


def keys(config: dict[str, Any]) -> list[Key]:
    return [
        {"tokenizer": name, "task": row["task"], "split": row["split"]}
        for name in config["tokenizers"]
        for row in config["tasks"]
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    with setting.place() as free:
        return measured(key, setting) if free else None


def measured(key: Key, setting: Setting) -> Row:
    """One tokenizer on one task's rows: statistics, and how many rows have each length."""
    from transformers import AutoTokenizer

    from thresher.tasks import load_task
    from thresher.tasks.encode import encode
    from thresher.tasks.glue import PUBLISHED_ROWS

    config = _asked(key, setting.config)
    tokenizer = AutoTokenizer.from_pretrained(setting.model(key["tokenizer"]), trust_remote_code=False)
    task = load_task(key["task"], data=setting.data_folder())
    train, evaluated = (
        encode(tokenizer, rows, max_length=None, positions=None).lengths
        for rows in (task.train + task.selection + task.left_out, task.test[key["split"]])
    )
    longest = setting.config["longest"]
    published = PUBLISHED_ROWS[key["task"]]
    return {
        "vocabulary": len(tokenizer),
        "rows": {"train": len(train), "eval": len(evaluated)},
        "published_rows": {"train": published["train"], "eval": published.get(key["split"])},
        "bins": config["bins"],
        "longest": longest,
        **asdict(length_statistics(train, evaluated, bins=config["bins"], longest=longest)),
        "counts": {"train": np.bincount(train).tolist(), "eval": np.bincount(evaluated).tolist()},
    }


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A table for each tokenizer in README.md, and the figure of the first one."""
    written = [folder / "README.md"]
    for name in config["tokenizers"]:
        own = [row for row in rows if row["tokenizer"] == name]
        write_between_marks(written[0], name, table(own, config))
    drawn = [row for row in rows if row["tokenizer"] == config["tokenizers"][0]]
    return [*written, *(draw(drawn, folder, config) if drawn else [])]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    lines = []
    for row in rows:
        asked = _asked(row, config)
        count = " / ".join(_count(row, side) for side in ("train", "eval"))
        quartiles = [*map(_joined, (row["train_quartiles"], asked["train"], row["eval_quartiles"], asked["eval"]))]
        divergences = [f"{row['kl']:.4f}", f"{asked['kl']:.4f}"]
        lines.append([asked["name"], count, *quartiles, *divergences, verdict(row, asked)])
    return markdown_table(COLUMNS, lines)


def verdict(row: Row, asked: dict[str, Any]) -> str:
    """Whether the paper's numbers come out; rows that are not all there cannot be held against them."""
    same = list(row["train_quartiles"]) == asked["train"] and list(row["eval_quartiles"]) == asked["eval"]
    if same and abs(row["kl"] - asked["kl"]) <= CLOSE:
        return "as published"
    if same:
        return "quantiles as published"
    return "" if any(row["rows"][side] != row["published_rows"][side] for side in row["rows"]) else "differs"


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """The distributions side by side, with the 99th percentiles as lines, as in the paper's figure."""
    pyplot = pyplot_in_style()
    columns = 4
    figure, grid = pyplot.subplots(
        -(-len(rows) // columns), columns, figsize=(12, 5.4), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(grid.flat, rows, strict=False):
        _panel(axes, row, _asked(row, config)["name"])
    for axes in grid[:, 0]:
        axes.set_ylabel("% of the rows, per token")
    for axes in grid[-1]:
        axes.set_xlabel("tokens")
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    files = save_figure(figure, folder, "lengths")
    pyplot.close(figure)
    return files


def _panel(axes: Any, row: Row, name: str) -> None:
    end = 1.12 * max(row["train_p99"], row["eval_p99"])
    width = max(1, round(end / 48))  # whole tokens: other widths hold now two lengths and now one, and draw a comb
    for side, colour, label in (("train", ORANGE, "training"), ("eval", BLUE, "evaluation")):
        counts = np.array(row["counts"][side], dtype=float)
        counts = np.pad(counts, (0, -len(counts) % width))
        share = 100 * counts.reshape(-1, width).sum(axis=1) / counts.sum() / width
        edges = width * np.arange(len(share) + 1)
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.3, label=label)
        axes.stairs(share, edges, color=colour, linewidth=1.2)
        style = (0, (4, 2)) if side == "train" else "-"
        p99 = row[f"{side}_p99"]
        axes.axvline(p99, color=colour, linestyle=style, linewidth=1.2, label=f"{label}: 99% are shorter")
    axes.set_xlim(0, end)
    axes.set_ylim(bottom=0)
    axes.set_title(name, loc="left", fontweight="bold", color=INK)
    axes.set_title(f"KL {row['kl']:.4f}", loc="right", fontsize=9, color=INK)


def _asked(row: Row, config: dict[str, Any]) -> dict[str, Any]:
    """What config.toml says of a row's task: its name in print, its bins and the paper's numbers."""
    found: dict[str, Any] = next(
        asked for asked in config["tasks"] if (asked["task"], asked["split"]) == (row["task"], row["split"])
    )
    return found


def _count(row: Row, side: str) -> str:
    have, published = row["rows"][side], row["published_rows"][side]
    return f"{have:,}" if have == published or published is None else f"{have:,} of {published:,}"


def _joined(values: Sequence[float]) -> str:
    return "/".join(f"{value:g}" for value in values)
