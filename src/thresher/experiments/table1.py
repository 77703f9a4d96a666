"""Dense against pruned at a small drop, task by task and seed by seed: the paper's table of quality and GFLOPs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting, key_of
from thresher.experiments.publish import write_between_marks
from thresher.experiments.runner import RECORDS, read_records
from thresher.experiments.table1_page import CONTROL, controls_of, means, remarks, summary, table
from thresher.experiments.trained import measure_trained

__all__ = ["KEY", "check", "joined", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
FRONT = "quality"  # the mark in the project's README
CONTROLS = "tradeoff/records.jsonl"  # has the control with one seed, for tasks that have none of that seed here


def check(setting: Setting) -> None:
    setting.data_folder()
    for model in setting.config["models"]:
        setting.model(model)


def keys(config: dict[str, Any]) -> list[Key]:
    """A task has a target for each model that it is measured with; the control, of some models, drops nothing."""
    rows = [
        {"task": task, "model": model, "method": "thresher", "target": about["target"][model], "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for task, about in config["tasks"].items()
        if model in about.get("target", {})
    ]
    controls = [{**row, "method": CONTROL, "target": 1.0} for row in rows if row["model"] in config.get("controls", ())]
    return rows + controls


def measure(key: Key, setting: Setting) -> Row | None:
    """A task may be one of the test sets of another, `of`, whose run they share."""
    about = setting.config["tasks"][key["task"]]
    if "of" not in about:
        return measure_trained(key, setting)
    return measure_trained({**key, "task": about["of"]}, setting, split=about["split"])


def joined(folder: Path, config: dict[str, Any]) -> list[Row]:
    """Pruned rows that do not say yet what the control of their task, model and seed scores, with what it does."""
    rows = read_records(folder / RECORDS)
    found = controls_of([*_elsewhere(folder), *rows])
    last = {key_of(row, KEY): row for row in rows if row["method"] != CONTROL}
    return [
        {**row, "control": control["pruned"], "control_from": control["dense"]}
        for row in last.values()
        if "control" not in row and (control := found.get((row["task"], row["model"], row["seed"])))
    ]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    taken, named = _with_others(folder, config)
    everything = [*rows, *taken]
    controls = controls_of([*_elsewhere(folder), *everything])
    pruned = [row for row in everything if row["method"] != CONTROL]
    write_between_marks(page, "table", table(pruned, controls, named))
    write_between_marks(page, "summary", summary(pruned, controls, named))
    write_between_marks(page, "remarks", remarks(pruned, named))
    front = Path(os.path.relpath(folder.absolute().parents[1] / "README.md"))  # the project's
    if not (front.is_file() and f"<!-- {FRONT} -->" in front.read_text(encoding="utf-8")):
        return [page]
    write_between_marks(front, FRONT, means(pruned, controls, named))
    return [page, front]


def _elsewhere(folder: Path) -> list[Row]:
    """Controls of another experiment, which count where the table has none of the same task and seed."""
    file = folder.parent / CONTROLS
    return read_records(file) if file.is_file() else []


def _with_others(folder: Path, config: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """Rows of tasks that other experiments measure, at the cost that the configuration names, and the configuration
    with these tasks among the others."""
    others = config.get("others", {})
    rows: list[Row] = []
    for task, about in others.items():
        file = folder.parent / about["experiment"] / RECORDS
        found = {key_of(row, KEY): row for row in (read_records(file) if file.is_file() else [])}
        targets = {**about["target"]}
        rows += [
            row
            for row in found.values()
            if row["task"] == task
            and (row["method"] == CONTROL or (row["method"], row["target"]) == ("thresher", targets.get(row["model"])))
        ]
    return rows, {**config, "tasks": {**config["tasks"], **others}}
