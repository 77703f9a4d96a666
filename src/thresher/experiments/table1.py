"""Dense against pruned at a small drop, task by task and seed by seed: the paper's table of quality and GFLOPs."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.runner import read_records
from thresher.experiments.trained import measure_trained as measure

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
COLUMNS = ("task", "model", "seed", "dense", "pruned", "drop", "GFLOPs", "fewer FLOPs", "paper (RoBERTa-base)")
FRONT = "quality"  # the mark in the project's README
LIMIT = 0.01  # of the dense model's score, as the paper counts
CONTROL = "dense"  # the dense model trained as long as the pruned one, with distillation
CONTROLS = "tradeoff/records.jsonl"  # has the control with one seed, for tasks that have none here yet


def check(setting: Setting) -> None:
    setting.data_folder()
    for model in setting.config["models"]:
        setting.model(model)


def keys(config: dict[str, Any]) -> list[Key]:
    """The target of a task is that of its model, or one for all; the control, of some models, drops nothing."""
    pruned = [
        {"task": task, "model": model, "method": "thresher", "target": about["target"][model], "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for task, about in config["tasks"].items()
    ]
    controls = [
        {"task": task, "model": model, "method": CONTROL, "target": 1.0, "seed": seed}
        for seed in config["seeds"]
        for model in config.get("controls", ())
        for task in config["tasks"]
    ]
    return pruned + controls


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    pruned = [row for row in rows if row["method"] != CONTROL]
    write_between_marks(page, "table", table(pruned, config))
    write_between_marks(page, "summary", summary(pruned))
    front = Path(os.path.relpath(folder.absolute().parents[1] / "README.md"))  # the project's
    if not (front.is_file() and f"<!-- {FRONT} -->" in front.read_text(encoding="utf-8")):
        return [page]
    elsewhere = folder.parent / CONTROLS
    others = read_records(elsewhere) if elsewhere.is_file() else []
    write_between_marks(front, FRONT, means(pruned, [*others, *rows], config))
    return [page, front]


def means(rows: Sequence[Row], controls: Sequence[Row], config: dict[str, Any]) -> str:
    """The first model, a column a task: dense, the control, pruned, and what it saves. Of `controls` the last ones of a
    task and seed count."""
    model = config["models"][0]
    lines: dict[str, list[str]] = {name: [] for name in ("dense", "control", "pruned", "fewer")}
    tasks, seeds, control_seeds = [], set(), set()
    for task, about in config["tasks"].items():
        own = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        if not own:
            continue
        tasks.append(about["name"])
        dense, pruned, _, _, fewer = _numbers(own)
        found = {
            r["seed"]: r["pruned"] for r in controls if (r["task"], r["model"], r["method"]) == (task, model, CONTROL)
        }
        control = f"{100 * mean(found.values()):.2f}" if found else ""
        for name, cell in (("dense", dense), ("control", control), ("pruned", pruned), ("fewer", fewer)):
            lines[name].append(cell)
        seeds.add(len(own))
        control_seeds.add(len(found))
    return markdown_table(
        [f"{model}, official validation rows, mean of {_counted(seeds)}", *tasks],
        [
            ["dense", *lines["dense"]],
            [f"dense, trained as long: the control ({_counted(control_seeds)})", *lines["control"]],
            ["**pruned**", *lines["pruned"]],
            ["fewer FLOPs", *lines["fewer"]],
        ],
    )


def _counted(numbers: set[int]) -> str:
    return f"{'/'.join(map(str, sorted(numbers)))} {'seed' if numbers == {1} else 'seeds'}"


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
