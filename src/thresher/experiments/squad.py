"""Question answering: F1 of dense and pruned models, with and without an answer, beside the rivals at three costs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting, key_of
from thresher.experiments.of_tokens import CONTROL, controls, draw, measure_run, method_keys, points, table
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.runner import RECORDS, read_records
from thresher.experiments.table1 import check
from thresher.experiments.token_tries import TRIES

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "method", "target", "seed")
TRIED = (*TRIES, "rejoins")  # the last by a setting alone
METRICS, NAMES = ("f1", "hasans_f1", "noans_f1"), ("F1", "with an answer", "without")


def keys(config: dict[str, Any]) -> list[Key]:
    return [key for model in config["models"] for key in method_keys(config, task="squad_v2", model=model)]


def measure(key: Key, setting: Setting) -> Row | None:
    return measure_run(key, setting)


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page, model, every = folder / "README.md", config["models"][0], with_others(rows, folder)
    write_between_marks(page, "summary", summary(rows))
    write_between_marks(page, "tries", tries(rows))
    write_between_marks(page, "means", means(rows))
    write_between_marks(page, "table", table(every, METRICS, NAMES))
    write_between_marks(page, "figure", "![F1 against relative FLOPs](squad.png)")
    own, all_own = ([row for row in some if row["model"] == model] for some in (rows, every))
    return [page, *draw(own, folder, "squad", title=f"SQuAD 2.0, {model}", every=all_own)]


def with_others(rows: Sequence[Row], folder: Path) -> list[Row]:
    """The rows, and after them those that the configuration no longer asks for: every run is shown."""
    known = {key_of(row, KEY) for row in rows}
    others = {key_of(row, KEY): row for row in read_records(folder / RECORDS)}
    return [*rows, *(row for key, row in others.items() if key not in known)]


def tries(rows: Sequence[Row]) -> str:
    """What was gained by each of the tries, against method thresher with the same seed and target."""
    plain = {(row["model"], row["target"], row["seed"]): row for row in rows if row["method"] == "thresher"}
    lines = []
    for row in rows:
        other = plain.get((row["model"], row["target"], row["seed"]))
        if row["method"] in TRIED and other is not None:
            gained = [f"{100 * (row[f'pruned_{name}'] - other[f'pruned_{name}']):+.2f}" for name in METRICS]
            costs = [f"{1 / each['relative_flops']:.2f}x" for each in (other, row)]
            lines.append([row["method"], str(row["seed"]), *costs, *gained])
    heads = ["tried", "seed", "thresher", "with it", *(f"gained, {name}" for name in NAMES)]
    return markdown_table(heads, lines) if lines else ""


def means(rows: Sequence[Row]) -> str:
    """A line a method and cost: the mean of its seeds."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of_metric = [points(rows, method, f"pruned_{name}") for name in METRICS]
        for found in zip(*of_metric, strict=True):
            lines.append([method, f"{1 / found[0][0]:.2f}x", *(f"{score:.2f}" for _, score in found)])
    return markdown_table(["method", "fewer FLOPs", *NAMES], lines)


def summary(rows: Sequence[Row]) -> str:
    """For each model and cost of method thresher: what is lost against the dense model and against the control."""
    lines = []
    for model, target in dict.fromkeys((row["model"], row["target"]) for row in rows if row["method"] == "thresher"):
        own = [row for row in rows if (row["model"], row["method"], row["target"]) == (model, "thresher", target)]
        lost = [100 * mean(row[f"dense_{name}"] - row[f"pruned_{name}"] for row in own) for name in METRICS]
        fewer = mean(1 / row["relative_flops"] for row in own)
        said = f"{lost[0]:.2f} points of F1 ({lost[1]:.2f} with an answer, {lost[2]:.2f} without)"
        trained = controls([row for row in rows if row["model"] == model])
        beside = [row for row in own if row["seed"] in trained]
        control = ""
        if beside:
            less = 100 * mean(trained[row["seed"]]["pruned_f1"] - row["pruned_f1"] for row in beside)
            control = f", and {less:.2f} against the {CONTROL} control trained as long"
        seeds = f"mean of {len(own)} seed{'' if len(own) == 1 else 's'}"
        lines.append(f"- {model} at {fewer:.2f}x fewer FLOPs, {seeds}: loses {said}{control}.")
    return "\n".join(lines)
