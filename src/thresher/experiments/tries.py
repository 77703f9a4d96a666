"""What might make a better method: switches of training, each beside the default and beside a control with the same."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.recipe import DEFAULT, spread
from thresher.experiments.rows import chosen, cut, read_rows, write_rows
from thresher.experiments.table1 import check
from thresher.experiments.trained import measure_trained
from thresher.experiments.widths import KEY, SCORES
from thresher.text import is_blank

__all__ = ["KEY", "check", "folders", "keys", "measure", "publish"]

CONTROL = "dense"  # trained as long, with the same distillation and the same switch, without pruning
REVIEW_WORDS = 20  # of a film review, the first ones: about as many as a sentence of SST-2 has
COLUMNS = (
    *("task", "model", "variant", "seeds", "pruned", "relative FLOPs", "lead over the default"),
    *("control with it", "lost against this control"),
)
_writing = threading.Lock()  # rows that need one file wait for whoever writes it
Own = dict[tuple[str, bool], Row]  # by variant, and whether it is the control


def keys(config: dict[str, Any]) -> list[Key]:
    """A task has a target for each model that tries it. Variants `with_more_texts` are for tasks that name some, and
    those in `controls` are also trained without pruning. Neighbours are of different tasks: rows of one task wait for
    the same dense model."""
    return [
        {"task": task, "model": model, "method": method, "variant": variant, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for variant, settings in config["variants"].items()
        for method in (settings.get("method", "thresher"), CONTROL)
        for task, about in config["tasks"].items()
        if model in about["target"]
        and (method != CONTROL or variant in config["controls"])
        and ("more_texts" in about or variant not in config["with_more_texts"])
        for target in [1.0 if method == CONTROL else about["target"][model]]
    ]


def folders(key: Key, config: dict[str, Any]) -> list[str]:
    more = config["tasks"][key["task"]]["more_texts"] if key["variant"] in config["with_more_texts"] else []
    return [key["task"], *more]


def measure(key: Key, setting: Setting) -> Row | None:
    wanted = key["variant"] in setting.config["with_more_texts"]
    return measure_trained(key, setting, more=more_texts(key, setting) if wanted else None)


def more_texts(key: Key, setting: Setting) -> Path:
    """A file with training texts of other tasks, in the columns of the row's own: so many as the model is given, by
    their hash. Made by the first row that needs it."""

    names, count = setting.config["tasks"][key["task"]]["more_texts"], setting.config["more_rows"][key["model"]]
    file = setting.work / f"{'-'.join(names)}-for-{key['task']}-{count}.jsonl.xz"
    with _writing:
        if not file.exists():
            rows = [row for name in names for row in texts_of(name, key["task"], setting.data_folder())]
            rows = [row for row in rows if not any(map(is_blank, row.values()))]
            taken = chosen(rows, count, key=lambda row: "\n".join(row.values()), salt="tries")
            partial = file.with_name(f"partial-{file.name}")
            write_rows(partial, taken)
            partial.rename(file)
    return file


def texts_of(name: str, task: str, data: Path) -> list[dict[str, str]]:
    """The training texts of another task, in the columns of this one. Film reviews are cut to their first words."""
    from thresher.tasks import load_task
    from thresher.tasks.glue import GLUE_TASKS

    spec = GLUE_TASKS[task]
    if name not in GLUE_TASKS:
        reviews = read_rows(data / name / "train.jsonl.xz")
        return [{spec.text_column: cut(str(row["text"]), REVIEW_WORDS)} for row in reviews]
    pairs = load_task(name, data=data).train
    return [{spec.text_column: row.text, str(spec.pair_column): str(row.pair)} for row in pairs]


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "leads", leads(rows, config) if rows else "Not measured yet.")
    write_between_marks(page, "table", table(rows, config) if rows else "Not measured yet.")
    return [page]


def runs_of(rows: Sequence[Row]) -> dict[tuple[str, str, int], Own]:
    """By task, model and seed: the runs that start from the same dense model."""
    found: dict[tuple[str, str, int], Own] = {}
    for row in rows:
        place = row["variant"], row["method"] == CONTROL
        found.setdefault((row["task"], row["model"], row["seed"]), {})[place] = row
    return found


def lead(runs: Sequence[Own], variant: str, score: str) -> list[float]:
    """Points above the default's run from the same dense model."""
    pairs = [(own.get((variant, False)), own.get((DEFAULT, False))) for own in runs]
    return [100 * (ours[score] - theirs[score]) for ours, theirs in pairs if ours is not None and theirs is not None]


def lost(runs: Sequence[Own], variant: str, config: dict[str, Any]) -> list[float]:
    """Percent of the score of the control with the same switch that the pruned model lacks. A switch that means nothing
    without pruning is not among the configuration's `controls`: there the default's control is the same."""
    beside = variant if variant in config["controls"] else DEFAULT
    pairs = [(own.get((variant, False)), own.get((beside, True))) for own in runs]
    return [
        100 * (1 - pruned["pruned"] / control["pruned"])
        for pruned, control in pairs
        if pruned is not None and control is not None
    ]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for every task, model and variant, means over seeds."""
    lines = []
    for task, about in config["tasks"].items():
        for model in config["models"]:
            runs = [own for (of, by, _), own in runs_of(rows).items() if (of, by) == (task, model)]
            for variant in config["variants"]:
                pruned, control = (
                    [own[variant, kind] for own in runs if (variant, kind) in own] for kind in (False, True)
                )
                if not pruned and not control:
                    continue
                score, beside = (spread([100 * row["pruned"] for row in some], ".2f") for some in (pruned, control))
                cost = spread([row["relative_flops"] for row in pruned], ".3f")
                above = "" if variant == DEFAULT else _both(runs, variant)
                against = spread(lost(runs, variant, config), "+.2f")
                seeds = str(len(pruned or control))
                lines.append(
                    [about["name"], _named(model, config), variant, seeds, score, cost, above, beside, against]
                )
    return markdown_table(COLUMNS, lines)


def leads(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """Every variant over all tasks, model by model."""
    lines = []
    for model in config["models"]:
        runs = [own for (_, by, _), own in runs_of(rows).items() if by == model]
        for variant in config["variants"]:
            count = sum((variant, False) in own for own in runs)
            if count:
                above = "" if variant == DEFAULT else _both(runs, variant)
                lines.append(
                    [_named(model, config), variant, str(count), above, spread(lost(runs, variant, config), "+.2f")]
                )
    return markdown_table(["model", "variant", "runs", "lead over the default", "lost against its control"], lines)


def _named(model: str, config: dict[str, Any]) -> str:
    return f"{model}: first signals, no evidence" if model in config.get("first_signals", ()) else model


def _both(runs: Sequence[Own], variant: str) -> str:
    """The lead on selection rows, which decide, and on validation rows."""
    found = [spread(lead(runs, variant, score), "+.2f") for score in SCORES]
    return " / ".join(found) if any(found) else ""
