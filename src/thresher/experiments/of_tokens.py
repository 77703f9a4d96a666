"""What the experiments with answers and tags share: F1 of dense and pruned models, the control, tables and figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.fronts import measure_on_front
from thresher.experiments.publish import markdown_table
from thresher.experiments.token_tries import TRIES
from thresher.experiments.trained import measure_trained
from thresher.report.figures import INK, pyplot_in_style, save_figure

CONTROL = "dense"  # trained on for as long without pruning: one point, at full cost
METRICS = ("f1", "exact", "hasans_f1", "noans_f1", "precision", "recall", "null_threshold")
COLOURS = {
    "thresher": "#d1495b",
    "ltp": "#e39aa4",
    "manual": "#edae49",
    "spatten": "#1f5fa8",
    "lat": "#66a182",
    "random": "#8d8d8d",
}


def method_keys(config: dict[str, Any], **fixed: Any) -> list[Key]:
    """Target by target, in the order of the configuration; [compared] has each method's seeds. The control has one
    target, with the first; so have what [tries] names, which come after the method that they change, the first."""
    found, tries = [], config.get("tries", {})
    first, *others = config["compared"].items()
    once = {CONTROL, *tries}
    for target in config["targets"]:
        for method, seeds in [first, *tries.items(), *others]:
            if method not in once or target == config["targets"][0]:
                own = 1.0 if method == CONTROL else target
                found += [{**fixed, "method": method, "target": own, "seed": seed} for seed in seeds]
    return found


def measure_run(
    key: Key, setting: Setting, *, rows: Sequence[str] | None = None, name: str | None = None
) -> Row | None:
    """One run, with F1 of all kinds; None where the deadline came first."""
    if key["method"] in TRIES:
        setting = replace(setting, program=("thresher.experiments.token_tries", key["method"]))
    measure = measure_on_front if key["method"] == "lat" else measure_trained
    return measure(key, setting, rows=rows, name=name, fields=metric_fields)


def metric_fields(version: str, metrics: dict[str, float]) -> Row:
    """What a record says of the dense or the pruned version: dense_f1, dense_hasans_f1, ..."""
    return {f"{version}_{name}": metrics[name] for name in METRICS if name in metrics}


def points(rows: Sequence[Row], method: str, metric: str = "pruned_f1") -> list[tuple[float, float]]:
    """(relative FLOPs, score in percent) of a method, the mean of its seeds at each target, the cheapest first."""
    own = [row for row in rows if row["method"] == method]
    found = []
    for target in sorted({row["target"] for row in own}):
        seeds = [row for row in own if row["target"] == target]
        found.append((mean(row["relative_flops"] for row in seeds), 100 * mean(row[metric] for row in seeds)))
    return sorted(found)


def controls(rows: Sequence[Row]) -> dict[int, Row]:
    """The control of each seed."""
    return {row["seed"]: row for row in rows if row["method"] == CONTROL}


def drops(row: Row, control: Row | None, metrics: Sequence[str]) -> list[str]:
    """For each metric dense -> pruned and the points lost; against the control, if there is one, the first metric's."""
    cells = [
        f"{100 * row[f'dense_{name}']:.2f} -> {100 * row[f'pruned_{name}']:.2f} "
        f"({100 * (row[f'pruned_{name}'] - row[f'dense_{name}']):+.2f})"
        for name in metrics
    ]
    name = metrics[0]
    against = "" if control is None else f"{100 * (row[f'pruned_{name}'] - control[f'pruned_{name}']):+.2f}"
    return [*cells, against]


def table(rows: Sequence[Row], metrics: Sequence[str], names: Sequence[str]) -> str:
    """Every run: method, what was asked for, seed, cost, and what it lost."""
    found = controls(rows)
    lines = [
        [row["method"], f"{row['target']:g}", str(row["seed"]), f"{1 / row['relative_flops']:.2f}x"]
        + drops(row, None if row["method"] == CONTROL else found.get(row["seed"]), metrics)
        for row in rows
    ]
    return markdown_table(["method", "target", "seed", "fewer FLOPs", *names, f"{names[0]} against the control"], lines)


def draw(rows: Sequence[Row], folder: Path, name: str, *, title: str, every: Sequence[Row] = ()) -> list[Path]:
    """F1 against relative FLOPs, a line a method; a small point for each of `every` run, also of other settings."""
    pyplot = pyplot_in_style()
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    dense = 100 * mean(row["dense_f1"] for row in rows)
    axes.axhline(dense, color=INK, linewidth=0.8, label="dense")
    if found := controls(rows).values():
        trained = 100 * mean(row["pruned_f1"] for row in found)
        axes.axhline(trained, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="dense, trained as long")
        axes.plot([1.0] * len(found), [100 * row["pruned_f1"] for row in found], "o", color=INK, markersize=3)
    for method, colour in COLOURS.items():
        runs = [(row["relative_flops"], 100 * row["pruned_f1"]) for row in every if row["method"] == method]
        if runs:
            axes.plot(*zip(*runs, strict=True), "o", color=colour, markersize=3, alpha=0.6, label=f"{method}, each run")
        if line := points(rows, method):
            wide = 2.2 if method == "thresher" else 1.3
            axes.plot(*zip(*line, strict=True), "o-", color=colour, linewidth=wide, markersize=4, label=method)
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    axes.set_xlabel("relative FLOPs")
    axes.set_xlim(0.3, 1.03)  # from cheaper than any cost that is asked for to dense
    axes.set_ylabel("F1")
    axes.legend(frameon=False)
    files = save_figure(figure, folder, name)
    pyplot.close(figure)
    return files
