"""`thresher search` against a sweep: is the drop kept on other rows, at which cost, and for how much training?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.publish import write_between_marks
from thresher.experiments.search_page import draw, tables, verdict
from thresher.experiments.table1 import check
from thresher.experiments.trained import (
    dense_model,
    ensured,
    folder_name,
    row_of,
    settings_of,
    shown,
    trained_run,
)

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "kind", "target", "seed")


def keys(config: dict[str, Any]) -> list[Key]:
    """Searches of all seeds, which have no target, then the sweep. Neighbours are of different tasks: rows of one task
    wait for the same dense model."""
    searches = [("search", None, seed) for seed in config["seeds"]]
    sweeps = [("sweep", target, seed) for seed in config["sweep_seeds"] for target in config["targets"]]
    return [
        {"task": task, "model": model, "kind": kind, "target": target, "seed": seed}
        for kind, target, seed in searches + sweeps
        for model in config["models"]
        for task in config["tasks"]
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    dense = dense_model(key, setting, rows=["--task", key["task"], "--data", str(setting.data_folder())])
    if dense is None:
        return None
    return _searched(key, setting, dense) if key["kind"] == "search" else _swept(key, setting, dense)


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "verdict", verdict(rows, config))
    figure = "![drop against relative FLOPs](search.png)"
    write_between_marks(page, "tables", f"{figure}\n\n{tables(rows, config)}")
    return [page, *draw(rows, folder, config)]


def search_settings(key: Key, config: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, the sweep's training settings, and what [search] adds."""
    asked = {"max_drop": f"{100 * config['max_drop']:g}%", "finetune": "never", "seed": key["seed"]}
    return {**asked, **settings_of(config, model=key["model"], task=key["task"]), **config.get("search", {})}


def search_command(key: Key, config: dict[str, Any], *, source: str, data: str, out: str) -> list[str]:
    """The words after `thresher`."""
    settings = search_settings(key, config)
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["search", source, "--task", key["task"], "--data", data, "--out", out, *words]


def search_row(manifest: dict[str, Any], report: dict[str, Any], *, limit: float) -> Row:
    """A search's choice on validation rows, and what it knew of it, from its thresher.json and pareto.json."""
    (official,) = report["held_out_drop"].values()
    (chosen,) = (point for point in report["points"] if point["chosen"])
    found = row_of({**manifest, "selection_score": chosen["score"]})
    trained = [point for point in report["points"] if point["dial"] == 1.0]
    further = [point["seconds"] for point in trained if point["trained_from"] is not None]
    lost, recipe = len(report["given_up"]), manifest["recipe"]
    trials = len(trained) + lost
    # Of trials that were given up the search keeps no time: each counts as much as the longest of those that were not.
    seconds = report["seconds"] + lost * max(further or [report["seconds"]])
    short = report["settings"]["trial_share"] * recipe["hard_epochs"]
    drop = found["dense"] - found["pruned"]
    return {
        **found,
        "drop": drop,
        "interval": [official["low"], official["high"]],
        "within": drop <= limit,
        "selection": {name: chosen[name] for name in ("relative_flops", "score", "drop", "expected_drop", "bound")},
        "selection_within": report["within"],
        "trials": trials,
        "given_up": lost,
        "train_seconds": round(seconds, 1),
        "train_epochs": recipe["soft_epochs"] + recipe["hard_epochs"] + (trials - 1) * short,
    }


def sweep_row(manifest: dict[str, Any], before: dict[str, Any]) -> Row:
    """A run of the sweep on validation rows and on selection rows; `before` describes its dense model's run."""
    found, recipe = row_of(manifest), manifest["recipe"]
    return {
        **found,
        "drop": found["dense"] - found["pruned"],
        "selection_drop": before["selection_score"] - found["selection_score"],
        "train_epochs": recipe["soft_epochs"] + recipe["hard_epochs"],
    }


def _searched(key: Key, setting: Setting, dense: Path) -> Row | None:
    parts, settings = [key[name] for name in ("task", "model", "seed")], search_settings(key, setting.config)
    out = setting.work / folder_name("search", *parts, settings=settings, origin=[dense.parent.name])
    data = str(setting.data_folder())
    if not ensured(search_command(key, setting.config, source=str(dense), data=data, out=str(out)), out, setting):
        return None
    row = search_row(_read(out / "thresher.json"), _read(out / "pareto.json"), limit=setting.config["max_drop"])
    setting.leftovers.append(out)
    name = f"runs/{key['task']}-{key['model']}-{key['seed']}/dense"  # without this machine in it
    words = search_command(key, setting.config, source=name, data="data", out="runs/OUT")
    return {**row, "command": " ".join(["thresher", *words])}


def _swept(key: Key, setting: Setting, dense: Path) -> Row | None:
    own = {"method" if name == "kind" else name: key[name] for name in KEY} | {"method": "thresher"}
    out = trained_run(own, setting)
    if out is None:
        return None
    setting.leftovers.append(out)
    row = sweep_row(_read(out / "thresher.json"), _read(dense.parent / "thresher.json"))
    return {**row, "command": shown(own, setting.config)}


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
