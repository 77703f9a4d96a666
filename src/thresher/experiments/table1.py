"""Dense against pruned at a small drop, task by task and seed by seed: the paper's table of quality and GFLOPs."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.trained import measure_trained as measure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
COLUMNS = ("task", "model", "seed", "dense", "pruned", "drop", "GFLOPs", "fewer FLOPs", "paper (RoBERTa-base)")
FRONT = "quality"  # the mark in the project's README
LIMIT = 0.01  # of the dense model's score, as the paper counts


def check(setting: Setting) -> None:
    setting.data_folder()
    for model in setting.config["models"]:
        setting.model(model)


def keys(config: dict[str, Any]) -> list[Key]:
    """The target of a task is that of its model, or one for all."""
    return [
        {"task": task, "model": model, "method": "thresher", "target": about["target"][model], "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for task, about in config["tasks"].items()
    ]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    write_between_marks(page, "summary", summary(rows))
    front = Path(os.path.relpath(folder.absolute().parents[1] / "README.md"))  # the project's
    if not (front.is_file() and f"<!-- {FRONT} -->" in front.read_text(encoding="utf-8")):
        return [page]
    write_between_marks(front, FRONT, means(rows, config))
    return [page, front]


def means(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """The first model's, task by task."""
    model = config["models"][0]
    of_task = {task: [row for row in rows if (row["task"], row["model"]) == (task, model)] for task in config["tasks"]}
    lines = []
    for task, own in of_task.items():
        if own:
            dense, pruned, _, _, fewer = _numbers(own)
            lines.append([config["tasks"][task]["name"], dense, pruned, fewer])
    seeds = "/".join(map(str, sorted({len(own) for own in of_task.values() if own})))
    return markdown_table(
        [f"{model}, official validation rows, mean of {seeds} seeds", "dense", "pruned", "fewer FLOPs"], lines
    )


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """Every run, and the mean of each task's seeds."""
    lines = []
    for task, model in dict.fromkeys((row["task"], row["model"]) for row in rows):
        own = sorted((row for row in rows if (row["task"], row["model"]) == (task, model)), key=lambda row: row["seed"])
        about = config["tasks"][task]
        for row in own:
            lines.append([about["name"], model, str(row["seed"]), *_numbers([row]), ""])
        if len(own) > 1:
            lines.append([f"**{about['name']}**", model, f"mean of {len(own)}", *_numbers(own), about.get("paper", "")])
    return markdown_table(COLUMNS, lines)


def summary(rows: Sequence[Row]) -> str:
    """For each model: how far FLOPs fall on average over the tasks, and which runs lose more than the limit."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        tasks = dict.fromkeys(row["task"] for row in own)
        fewer = {task: mean(1 / row["relative_flops"] for row in own if row["task"] == task) for task in tasks}
        worst = min(fewer, key=lambda task: fewer[task])
        failing = [f"{row['task']} seed {row['seed']}" for row in own if drop(row) > LIMIT * row["dense"]]
        average, least = mean(fewer.values()), f"{fewer[worst]:.2f}x at least ({worst})"
        said = f"{average:.2f}x fewer FLOPs on average over {len(fewer)} tasks, {least}"
        more = f"{len(failing)} of {len(own)} runs lose more than 1% of the dense score"
        lines.append(f"- {model}: {said}; {more}{': ' + ', '.join(failing) if failing else ''}.")
    return "\n".join(lines)


def drop(row: Row) -> float:
    return float(row["dense"] - row["pruned"])


def _numbers(rows: Sequence[Row]) -> list[str]:
    dense, pruned = (100 * mean(row[name] for row in rows) for name in ("dense", "pruned"))
    gflops = " -> ".join(f"{mean(row[f'gflops_{name}'] for row in rows):.2f}" for name in ("dense", "pruned"))
    fewer = mean(1 / row["relative_flops"] for row in rows)
    return [f"{dense:.2f}", f"{pruned:.2f}", f"{dense - pruned:+.2f}", gflops, f"{fewer:.2f}x"]
