"""Dense against pruned at a small drop, task by task and seed by seed: the paper's table of quality and GFLOPs."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.experiments.answers import ANSWERS, Answers, by_key
from thresher.experiments.controls import CONTROL, Controls, controls_of, place_of
from thresher.experiments.experiment import Key, Row, Setting, experiment_named, key_of
from thresher.experiments.intervals import lost_interval
from thresher.experiments.publish import write_between_marks
from thresher.experiments.runner import RECORDS, in_order, read_config, read_records
from thresher.experiments.table1_page import goals, means, remarks, summary, table
from thresher.experiments.trained import measure_trained
from thresher.tasks.glue import GLUE_TASKS

__all__ = ["KEY", "check", "folders", "joined", "keys", "measure", "publish"]

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


def folders(key: Key, config: dict[str, Any]) -> list[str]:
    return [config["tasks"][key["task"]].get("of", key["task"])]


def measure(key: Key, setting: Setting) -> Row | None:
    """A task may be one of the test sets of another, `of`, whose run they share."""
    about = setting.config["tasks"][key["task"]]
    if "of" not in about:
        return measure_trained(key, setting)
    return measure_trained({**key, "task": about["of"]}, setting, split=about["split"])


def joined(folder: Path, config: dict[str, Any]) -> list[Row]:
    """Pruned rows that do not say what their control scores and starts from, or that say it of another: with what it
    does, or without where there is none that was trained as long."""
    rows = read_records(folder / RECORDS)
    found = controls_of([*_elsewhere(folder), *rows])
    last = {key_of(row, KEY): row for row in rows if row["method"] != CONTROL}
    changed = []
    for row in last.values():
        control = found.get(place_of(row))
        own = {name: value for name, value in row.items() if name not in ("control", "control_from")}
        own |= {} if control is None else {"control": control["pruned"], "control_from": control["dense"]}
        changed += [own] if own != row else []
    return changed


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    taken, named = _with_others(folder, config)
    everything = [*rows, *taken]
    controls = controls_of([*_elsewhere(folder), *everything])
    pruned = [row for row in everything if row["method"] != CONTROL]
    between = functools.partial(_between, controls=controls, answers=_answers(folder), config=config)
    write_between_marks(page, "table", table(pruned, controls, named, between))
    write_between_marks(page, "summary", summary(pruned, controls, named))
    write_between_marks(page, "goals", goals(pruned, controls, named))
    write_between_marks(page, "remarks", remarks(pruned, named))
    front = Path(os.path.relpath(folder.absolute().parents[1] / "README.md"))  # the project's
    if not (front.is_file() and f"<!-- {FRONT} -->" in front.read_text(encoding="utf-8")):
        return [page]
    write_between_marks(front, FRONT, means(pruned, controls, named))
    return [page, front]


def _answers(folder: Path) -> dict[tuple[Any, ...], Answers]:
    return by_key(read_records(folder / ANSWERS), KEY)


def _between(
    rows: Sequence[Row], *, controls: Controls, answers: dict[tuple[Any, ...], Answers], config: dict[str, Any]
) -> tuple[float, float] | None:
    """The interval of what the seeds of a task lose, where it is known how they and their controls answer each row."""
    task = config["tasks"].get(rows[0]["task"], {}).get("of", rows[0]["task"])
    if not answers or task not in GLUE_TASKS:
        return None
    pairs = [(row, controls.get(place_of(row))) for row in rows]
    known = [
        (answers[key_of(row, KEY)], answers[key_of(control, KEY)])
        for row, control in pairs
        if control is not None and {key_of(row, KEY), key_of(control, KEY)} <= set(answers)
    ]
    return lost_interval(GLUE_TASKS[task], known) if len(known) == len(rows) else None


def _elsewhere(folder: Path) -> list[Row]:
    """Controls of another experiment, which count where the table has none of the same task and seed."""
    file = folder.parent / CONTROLS
    return read_records(file) if file.is_file() else []


def _with_others(folder: Path, config: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """Rows of tasks that other experiments measure, at the cost that the configuration names, and the configuration
    with these tasks among the others. Only rows that the other experiment still asks for: what it has replaced is not
    drawn. It says which seeds make the task complete."""
    named = {}
    rows: list[Row] = []
    for task, about in config.get("others", {}).items():
        place = folder.parent / about["experiment"]
        other, its = experiment_named(about["experiment"]), read_config(place)
        costs = {(model, "thresher", target) for model, target in about["target"].items()}
        own = [key for key in other.keys(its) if key["task"] == task]
        named[task] = {**about, "seeds": [key["seed"] for key in own if _what(key) in costs]}
        rows += [
            row
            for row in in_order(read_records(place / RECORDS), other, its)
            if row["task"] == task and (row["method"] == CONTROL or _what(row) in costs)
        ]
    return rows, {**config, "tasks": {**config["tasks"], **named}}


def _what(row: Row) -> tuple[str, str, float]:
    return row["model"], row["method"], row["target"]
