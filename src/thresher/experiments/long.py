"""Long texts, where pruning should pay most: film reviews at 512 tokens and more, beside the control."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.of_tokens import CONTROL, controls
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.trained import command_of, measure_trained

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
TASK = "imdb"


def keys(config: dict[str, Any]) -> list[Key]:
    """A model's own targets, and its control, seed by seed."""
    return [
        {"task": TASK, "model": model, "method": method, "target": target, "seed": seed}
        for model, targets in config["targets"].items()
        for seed in config["seeds"]
        for method, target in [*(("thresher", target) for target in targets), (CONTROL, 1.0)]
    ]


def rows_in(data: Path) -> list[str]:
    """The words that name the rows for `thresher prune`."""
    return [word for name in ("train", "selection", "test") for word in (f"--{name}", str(data / f"{name}.jsonl.xz"))]


def measure(key: Key, setting: Setting) -> Row | None:
    found = measure_trained(key, setting, rows=rows_in(setting.data_folder() / TASK))
    if found is None:
        return None
    words = command_of(key, setting.config, source="DENSE", rows=rows_in(Path("data") / TASK), out="OUT")
    return {**found, "command": f"thresher {' '.join(words)}"}


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "means", means(rows))
    write_between_marks(page, "table", table(rows))
    return [page]


def means(rows: Sequence[Row]) -> str:
    """A line for each model and cost: the mean of its seeds, dense, control and pruned."""
    lines = []
    pruned = [row for row in rows if row["method"] != CONTROL]
    for model, target in dict.fromkeys((row["model"], row["target"]) for row in pruned):
        trained = controls([row for row in rows if row["model"] == model])
        own = [row for row in pruned if (row["model"], row["target"]) == (model, target)]
        scores = [mean(row[name] for row in own) for name in ("dense", "pruned")]
        beside = [(trained[row["seed"]]["pruned"], row["pruned"]) for row in own if row["seed"] in trained]
        lost = [control - score for control, score in beside]
        control = [f"{100 * mean(one for one, _ in beside):.2f}", f"{100 * mean(lost):+.2f}"] if beside else ["", ""]
        worst = f"{100 * max(lost):+.2f}" if lost else ""
        fewer = f"{mean(1 / row['relative_flops'] for row in own):.2f}x"
        lines.append(
            [model, str(len(own)), f"{100 * scores[0]:.2f}", control[0], f"{100 * scores[1]:.2f}", control[1], worst]
            + [fewer]
        )
    header = ["model", "seeds", "dense", "control", "pruned", "lost against the control", "worst seed", "fewer FLOPs"]
    return markdown_table(header, lines)


def table(rows: Sequence[Row]) -> str:
    """Every run."""
    lines = [
        [row["model"], row["method"], str(row["seed"]), f"{100 * row['dense']:.2f}", f"{100 * row['pruned']:.2f}"]
        + [f"{row['gflops_dense']:.1f} -> {row['gflops_pruned']:.1f}", f"{1 / row['relative_flops']:.2f}x"]
        for row in rows
    ]
    return markdown_table(["model", "method", "seed", "started from", "then", "GFLOPs", "fewer FLOPs"], lines)
