"""The page of table1: every run, the means of seeds with their intervals, goals, and the means on the front page."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from thresher.experiments.controls import Controls, lost, lost_net, place_of
from thresher.experiments.experiment import Row
from thresher.experiments.intervals import half_of_seeds
from thresher.experiments.publish import markdown_table

COLUMNS = (
    *("task", "model", "seed", "dense", "control (its start)", "pruned", "drop"),
    *("lost against the control", "net of the starts", "GFLOPs", "fewer FLOPs", "paper (RoBERTa-base)"),
)
LOSS = 4  # its place among the numbers of a line

# Goals for the first model, over the paper's rows: times fewer FLOPs, on average and on each, and what a row may lose.
ROWS, FEWER, HOPED, LEAST = 9, 2.2, 2.5, 1.8
DROP, LOST = 0.01, 1.5  # share of the dense score, as the paper counts; percent of the control's


def drop(row: Row) -> float:
    return float(row["dense"] - row["pruned"])


def with_interval(values: Sequence[float], form: str, unit: str = "") -> str:
    """A mean of seeds, and what it is known to."""
    half = half_of_seeds(values)
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


def complete(rows: Sequence[Row], config: dict[str, Any]) -> dict[tuple[str, str], list[Row]]:
    """Those that have all seeds: only they stand for their task in means."""
    wanted = {task: set(about.get("seeds", config["seeds"])) for task, about in config["tasks"].items()}
    return {place: own for place, own in of_tasks(rows, config).items() if {r["seed"] for r in own} >= wanted[place[0]]}


def unfinished(rows: Sequence[Row], controls: Controls, model: str, config: dict[str, Any]) -> str:
    """The tasks of a model that lack seeds: how many are there, and what those lose; those of equal state together."""
    there, whole = of_tasks(rows, config), complete(rows, config)
    said: dict[str, list[str]] = {}
    for task, about in config["tasks"].items():
        if model in about.get("target", {}) and (task, model) not in whole:
            own = there.get((task, model), [])
            losses = _known(lost, own, controls)
            so_far = f", losing {mean(losses):.1f}% against the control" if losses else ""
            state = f"{len(own)} of {len(about.get('seeds', config['seeds']))} seeds{so_far}"
            said.setdefault(state, []).append(about["name"])
    return "; ".join(f"{', '.join(names)} ({state})" for state, names in said.items())


def table(
    rows: Sequence[Row],
    controls: Controls,
    config: dict[str, Any],
    between: Callable[[Sequence[Row]], tuple[float, float] | None] = lambda rows: None,
) -> str:
    """Every run, and the mean of each task's seeds. `between` has the interval of what these lose against the control,
    by the bootstrap over rows and seeds, where every row's answers are known."""
    lines = []
    for (task, model), own in of_tasks(rows, config).items():
        about = config["tasks"][task]
        for row in own:
            lines.append([about["name"], model, str(row["seed"]), *_numbers([row], controls), ""])
        if len(own) > 1:
            numbers = _numbers(own, controls)
            if (found := between(own)) is not None:
                mean_lost = mean(_known(lost, own, controls))
                numbers[LOSS] = f"{mean_lost:+.2f}% ({found[0]:+.2f} to {found[1]:+.2f})"
            lines.append([f"**{about['name']}**", model, f"mean of {len(own)}", *numbers, about.get("paper", "")])
    return markdown_table(COLUMNS, lines)


def _numbers(rows: Sequence[Row], controls: Controls) -> list[str]:
    dense, pruned = (100 * mean(row[name] for row in rows) for name in ("dense", "pruned"))
    gflops = " -> ".join(f"{mean(row[f'gflops_{name}'] for row in rows):.2f}" for name in ("dense", "pruned"))
    beside = _beside(rows, controls)
    after, before = (100 * mean(row[name] for row in beside) if beside else 0.0 for name in ("pruned", "dense"))
    return [
        f"{dense:.2f}",
        f"{after:.2f} ({before:.2f})" if beside else "",
        f"{pruned:.2f}",
        with_interval([100 * drop(row) for row in rows], "+.2f"),
        *(_share(found) if (found := _known(how, rows, controls)) else "" for how in (lost, lost_net)),
        gflops,
        f"{_fewer(rows):.2f}x",
    ]


def _beside(rows: Sequence[Row], controls: Controls) -> list[Row]:
    return [controls[place] for row in rows if (place := place_of(row)) in controls]


def _known(how: Callable[[Row, Controls], float | None], rows: Sequence[Row], controls: Controls) -> list[float]:
    """In percent, of the runs that have a control."""
    return [100 * share for row in rows if (share := how(row, controls)) is not None]


def _share(found: Sequence[float]) -> str:
    return with_interval(found, "+.2f", "%")


def _fewer(rows: Sequence[Row]) -> float:
    return float(mean(1 / row["relative_flops"] for row in rows))


def summary(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """For each model: how far FLOPs fall on average over the tasks that have all seeds, which runs lose more than the
    limit, and what the means lose against the control."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        tasks = {task: own for (task, of), own in complete(rows, config).items() if of == model}
        if not tasks:
            continue
        fewer = {task: _fewer(own) for task, own in tasks.items()}
        worst = min(fewer, key=lambda task: fewer[task])
        runs = [row for own in tasks.values() for row in own]
        failing = [f"{row['task']} seed {row['seed']}" for row in runs if drop(row) > DROP * row["dense"]]
        average, least = mean(fewer.values()), f"{fewer[worst]:.2f}x at least ({worst})"
        said = f"{average:.2f}x fewer FLOPs on average over {len(fewer)} rows, {least}"
        more = f"{len(failing)} of {len(runs)} runs lose more than {DROP:.0%} of the dense score"
        lines.append(f"- {model}: {said}; {more}{': ' + ', '.join(failing) if failing else ''}.")
        for how, name in ((lost, "against the control"), (lost_net, "against it, net of where both start")):
            if losses := {task: found for task, own in tasks.items() if (found := _known(how, own, controls))}:
                each = ", ".join(
                    f"{config['tasks'][task]['name']} {mean(found):.1f}%" for task, found in losses.items()
                )
                whole = mean(mean(found) for found in losses.values())
                lines.append(f"- {model} {name}: {whole:.2f}% lost on average; {each}.")
    return "\n".join(lines)


def goals(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """Each goal of the first model's rows: met, missed and where, or not shown while rows are not complete."""
    model = config["models"][0]
    tasks = {config["tasks"][task]["name"]: own for (task, of), own in complete(rows, config).items() if of == model}
    missing = unfinished(rows, controls, model, config)
    rest = [f"- Not complete, and in none of these means: {missing}."] if missing else []
    if not tasks:
        return "\n".join(rest)
    fewer = {name: _fewer(own) for name, own in tasks.items()}
    dropped = {name: mean(map(drop, own)) / mean(row["dense"] for row in own) for name, own in tasks.items()}
    losses = {name: mean(found) for name, own in tasks.items() if (found := _known(lost, own, controls))}
    bare = [name for name, own in tasks.items() if len(_beside(own, controls)) < len(own)]
    average, least = mean(fewer.values()), min(fewer, key=lambda name: fewer[name])
    said = "missed" if average < FEWER else "met" if len(tasks) == ROWS else "not shown yet"
    return "\n".join(
        [
            f"- {FEWER:g}x fewer FLOPs on average over the paper's {ROWS} rows, hoped for {HOPED:g}x: **{said}**; "
            f"{len(tasks)} of {ROWS} are complete, with {average:.2f}x.",
            f"- {LEAST:g}x on every row: {_verdict({name: -x for name, x in fewer.items()}, -LEAST, 'x')}, "
            f"{fewer[least]:.2f}x at least ({least}).",
            f"- Every row's mean within {DROP:.0%} of the dense score: "
            f"{_verdict({name: 100 * share for name, share in dropped.items()}, 100 * DROP)}.",
            f"- At most {LOST:g}% lost against the control on every row: {_verdict(losses, LOST)}"
            f"{'; some seeds have no control yet: ' + ', '.join(bare) if bare else ''}.",
            *rest,
        ]
    )


def _verdict(found: dict[str, float], limit: float, unit: str = "%") -> str:
    """Whether all are at most the limit, and those that are not."""
    over = [f"{name} {abs(value):.2f}{unit}" for name, value in found.items() if value > limit]
    return f"**missed** on {', '.join(over)}" if over else f"**met** on all {len(found)} that are complete"


def remarks(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """What is to be known about the rows of a task."""
    shown = dict.fromkeys(row["task"] for row in rows)
    tasks = config["tasks"]
    said: dict[str, list[str]] = {}
    for task in (task for task in tasks if task in shown and "note" in tasks[task]):
        said.setdefault(tasks[task]["note"], []).append(tasks[task]["name"])
    return "\n".join(f"- {', '.join(names)}: {note}" for note, names in said.items())


def means(rows: Sequence[Row], controls: Controls, config: dict[str, Any]) -> str:
    """The first model, a column a task that has all seeds: dense, the control, pruned, what it loses against that, and
    what it saves; and below it the tasks that do not stand there yet."""
    model = config["models"][0]
    names, seeds = [], set()
    columns: list[list[str]] = []
    for (task, of), own in complete(rows, config).items():
        if of != model:
            continue
        names.append(config["tasks"][task]["name"])
        dense, pruned = (f"{100 * mean(row[name] for row in own):.2f}" for name in ("dense", "pruned"))
        found, losses = _beside(own, controls), _known(lost, own, controls)
        fewer = "" if len(found) == len(own) else f" ({_counted({len(found)})})"
        control = f"{100 * mean(row['pruned'] for row in found):.2f}{fewer}" if found else ""
        columns.append([dense, control, pruned, f"{mean(losses):.1f}%" if losses else "", f"{_fewer(own):.2f}x"])
        seeds.add(len(own))
    titles = (
        "dense",
        "dense, trained as long: the control",
        "**pruned**",
        "lost against the control, same seeds",
        "fewer FLOPs",
    )
    lines = [[title, *cells] for title, cells in zip(titles, zip(*columns, strict=True), strict=False)]
    head = markdown_table([f"{model}, rows that took no part in training, mean of {_counted(seeds)}", *names], lines)
    missing = unfinished(rows, controls, model, config)
    return head + (f"\n\nNot complete, and so not in the table: {missing}." if missing else "")


def _counted(numbers: set[int]) -> str:
    return f"{'/'.join(map(str, sorted(numbers)))} {'seed' if numbers == {1} else 'seeds'}"
