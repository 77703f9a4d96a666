"""The page of table1: every run, the means of seeds with their intervals, and the means on the project's front page."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from thresher.experiments.experiment import Row
from thresher.experiments.publish import markdown_table

LIMIT = 0.01  # of the dense model's score, as the paper counts
CONTROL = "dense"  # the dense model trained as long as the pruned one, with distillation
COLUMNS = (
    *("task", "model", "seed", "dense", "control", "pruned", "drop", "lost against the control"),
    *("GFLOPs", "fewer FLOPs", "paper (RoBERTa-base)"),
)
# Of Student's t, 97.5%, for so many seeds: how many standard errors a mean of so few is known to.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57}
Controls = Mapping[tuple[str, str, int], Row]  # by task, model and seed


def controls_of(rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    """The last ones of a task, model and seed count."""
    return {(row["task"], row["model"], row["seed"]): row for row in rows if row["method"] == CONTROL}


def drop(row: Row) -> float:
    return float(row["dense"] - row["pruned"])


def lost(row: Row, controls: Controls) -> float | None:
    """Share of the score of the control with the same seed that the pruned model lacks; None without a control."""
    control = controls.get((row["task"], row["model"], row["seed"]))
    return None if control is None else 1 - float(row["pruned"]) / float(control["pruned"])


def spread(values: Sequence[float]) -> float | None:
    """Half of the 95% interval of a mean over seeds, by Student's t; None for one seed."""
    count = len(values)
    return STUDENT[count] * stdev(values) / math.sqrt(count) if count in STUDENT else None


def with_interval(values: Sequence[float], form: str, unit: str = "") -> str:
    """A mean of seeds, and what it is known to."""
    half = spread(values)
    return f"{mean(values):{form}}{unit}" + (f" ± {half:.2f}" if half is not None else "")


def of_tasks(rows: Sequence[Row], config: dict[str, Any]) -> dict[tuple[str, str], list[Row]]:
    """The runs of every task and model, seed by seed; models as the configuration lists them, and then tasks."""
    found: dict[tuple[str, str], list[Row]] = {}
    for model in config["models"]:
        for task in config["tasks"]:
            own = [row for row in rows if (row["task"], row["model"]) == (task, model)]
            if own:
                found[task, model] = sorted(own, key=lambda row: int(row["seed"]))
    return found


def table(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """Every run, and the mean of each task's seeds."""
    lines = []
    for (task, model), own in of_tasks(rows, config).items():
        about = config["tasks"][task]
        for row in own:
            lines.append([about["name"], model, str(row["seed"]), *_numbers([row], controls), ""])
        if len(own) > 1:
            numbers = _numbers(own, controls)
            lines.append([f"**{about['name']}**", model, f"mean of {len(own)}", *numbers, about.get("paper", "")])
    return markdown_table(COLUMNS, lines)


def _numbers(rows: Sequence[Row], controls: Controls) -> list[str]:
    dense, pruned = (100 * mean(row[name] for row in rows) for name in ("dense", "pruned"))
    gflops = " -> ".join(f"{mean(row[f'gflops_{name}'] for row in rows):.2f}" for name in ("dense", "pruned"))
    beside = [controls[key] for row in rows if (key := (row["task"], row["model"], row["seed"])) in controls]
    control = f"{100 * mean(row['pruned'] for row in beside):.2f}" if beside else ""
    losses = _losses(rows, controls)
    return [
        f"{dense:.2f}",
        control,
        f"{pruned:.2f}",
        with_interval([100 * drop(row) for row in rows], "+.2f"),
        with_interval([100 * loss for loss in losses], "+.2f", "%") if losses else "",
        gflops,
        f"{mean(1 / row['relative_flops'] for row in rows):.2f}x",
    ]


def _losses(rows: Sequence[Row], controls: Controls) -> list[float]:
    return [loss for row in rows if (loss := lost(row, controls)) is not None]


def summary(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """For each model: how far FLOPs fall on average over the tasks, which runs lose more than the limit, and what the
    means lose against the control."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        tasks = {task: own for (task, of), own in of_tasks(rows, config).items() if of == model}
        fewer = {task: mean(1 / row["relative_flops"] for row in own) for task, own in tasks.items()}
        worst = min(fewer, key=lambda task: fewer[task])
        runs = [row for own in tasks.values() for row in own]
        failing = [f"{row['task']} seed {row['seed']}" for row in runs if drop(row) > LIMIT * row["dense"]]
        average, least = mean(fewer.values()), f"{fewer[worst]:.2f}x at least ({worst})"
        said = f"{average:.2f}x fewer FLOPs on average over {len(fewer)} rows, {least}"
        more = f"{len(failing)} of {len(runs)} runs lose more than 1% of the dense score"
        lines.append(f"- {model}: {said}; {more}{': ' + ', '.join(failing) if failing else ''}.")
        losses = {task: found for task, own in tasks.items() if (found := _losses(own, controls))}
        if losses:
            each = ", ".join(
                f"{config['tasks'][task]['name']} {100 * mean(found):.1f}%" for task, found in losses.items()
            )
            whole = mean(mean(found) for found in losses.values())
            lines.append(f"- {model} against the control: {100 * whole:.2f}% lost on average; {each}.")
    return "\n".join(lines)


def remarks(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """What is to be known about the rows of a task."""
    shown = dict.fromkeys(row["task"] for row in rows)
    tasks = config["tasks"]
    said: dict[str, list[str]] = {}
    for task in (task for task in tasks if task in shown and "note" in tasks[task]):
        said.setdefault(tasks[task]["note"], []).append(tasks[task]["name"])
    return "\n".join(f"- {', '.join(names)}: {note}" for note, names in said.items())


def means(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """The first model, a column a task: dense, the control, pruned, what it loses against that, and what it saves."""
    model = config["models"][0]
    names, seeds, control_seeds = [], set(), set()
    columns: list[list[str]] = []
    for (task, of), own in of_tasks(rows, config).items():
        if of != model:
            continue
        names.append(config["tasks"][task]["name"])
        dense, _, pruned, _, _, _, fewer = _numbers(own, controls)
        found = [control for (name, of, _), control in controls.items() if (name, of) == (task, model)]
        control = 100 * mean(row["pruned"] for row in found) if found else None
        loss = "" if control is None else f"{100 * (1 - 100 * mean(row['pruned'] for row in own) / control):.1f}%"
        columns.append([dense, "" if control is None else f"{control:.2f}", pruned, loss, fewer])
        seeds.add(len(own))
        control_seeds.add(len(found))
    titles = (
        "dense",
        f"dense, trained as long: the control ({_counted(control_seeds)})",
        "**pruned**",
        "lost against the control",
        "fewer FLOPs",
    )
    lines = [[title, *cells] for title, cells in zip(titles, zip(*columns, strict=True), strict=True)]
    return markdown_table([f"{model}, rows that took no part in training, mean of {_counted(seeds)}", *names], lines)


def _counted(numbers: set[int]) -> str:
    return f"{'/'.join(map(str, sorted(numbers)))} {'seed' if numbers == {1} else 'seeds'}"
