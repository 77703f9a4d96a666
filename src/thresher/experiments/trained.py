"""Rows that are training runs: `thresher prune` in a process of its own, from a dense model that is fine-tuned once."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.config import without_flag
from thresher.errors import RunError
from thresher.experiments.experiment import Key, Row, Setting

PATIENCE = 0.3  # seconds between two looks at a process
SAVED = ("state", "study.journal")  # what an interrupted `prune` and an interrupted `search` leave behind
_training: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by the run's name


def settings_of(config: dict[str, Any], *, model: str, task: str) -> dict[str, Any]:
    """Settings of [train], then of [train.MODEL], then of [tasks.TASK.train] and [tasks.TASK.train.MODEL]."""
    found: dict[str, Any] = {}
    for table in (config.get("train", {}), config["tasks"][task].get("train", {})):
        found |= {name: value for name, value in table.items() if not isinstance(value, dict)}
        found |= table.get(model, {})
    return found


def command_of(key: Key, config: dict[str, Any], *, source: str, rows: Sequence[str], out: str) -> list[str]:
    """The words after `thresher`. What has no flag of its own is given with --set. A variant's settings are those of
    [variants.NAME], then of [tasks.TASK.variants.NAME]; its target is None where it names a lambda."""
    settings = settings_of(config, model=key["model"], task=key["task"])
    settings |= {"method": key["method"], "seed": key["seed"], **config.get("methods", {}).get(key["method"], {})}
    for table in (config, config["tasks"][key["task"]]):
        settings |= table.get("variants", {}).get(key.get("variant"), {})
    if key.get("target") is not None:
        settings["target_flops"] = key["target"]
    words = []
    for name, value in settings.items():
        said = str(value).lower() if isinstance(value, bool) else str(value)  # as TOML writes it
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        words += ["--set", f"{name}={said}"] if without_flag(name) else [flag, said]
    return ["prune", source, *rows, "--out", out, *words]


def measure_trained(key: Key, setting: Setting) -> Row | None:
    """One row, or None where the deadline came first: the run then goes on from its last saved state."""
    out = trained_run(key, setting)
    if out is None:
        return None
    manifest = json.loads((out / "thresher.json").read_text(encoding="utf-8"))
    shutil.rmtree(out)  # a hundred models would fill the disk
    return {**row_of(manifest), "command": shown(key, setting.config)}


def trained_run(
    key: Key, setting: Setting, *, rows: Sequence[str] | None = None, name: str | None = None
) -> Path | None:
    """The folder of a finished run, trained now if need be; None where the deadline came first.

    `rows` replaces the words that name the task's rows, and `name` starts the names of the folders, where other
    experiments train on other rows.
    """
    rows = rows or ["--task", key["task"], "--data", str(setting.data_folder())]
    prefix = [] if name is None else [name]
    dense = dense_model(key, setting, rows=rows, prefix=prefix)
    if dense is None:
        return None
    out = setting.work / "-".join([*prefix, *(str(value) for value in key.values())])
    words = command_of(key, setting.config, source=str(dense), rows=rows, out=str(out))
    return out if ensured([*words, "--finetune", "never"], out, setting) else None


def ensured(words: Sequence[str], out: Path, setting: Setting) -> bool:
    """Whether the run that these words make is there, made now if need be; False where the deadline came first."""
    with _training[out.name]:  # rows may share a run
        return out.is_dir() or _finished(words, out, setting)


def row_of(manifest: dict[str, Any]) -> Row:
    """What a table needs of a run's description: quality on the rows that took no part in training or selection."""
    (found,) = manifest["quality"].values()
    where = manifest["provenance"]
    return {
        "dense": found["dense"]["metrics"]["score"],
        "pruned": found["pruned"]["metrics"]["score"],
        "gflops_dense": found["dense"]["gflops"],
        "gflops_pruned": found["pruned"]["gflops"],
        "relative_flops": found["pruned"]["relative_flops"],
        "kept_per_layer": found["pruned"]["kept_per_layer"],
        "selection_score": kept_score(manifest.get("history", []), "hard", manifest.get("recipe")),
        "train_seconds": manifest["seconds"],
        "device": where["device"],
        "versions": where["versions"],
    }


def kept_score(history: Sequence[Row], stage: str, recipe: dict[str, Any] | None = None) -> float | None:
    """The selection score of the checkpoint that a stage keeps: the best, and rather one within the FLOPs target."""
    from thresher.training.budget import SLACK

    target = None if recipe is None else recipe.get("target_flops")
    most = float("inf") if target is None else target + SLACK
    seen = [(row.get("relative_flops", 0.0) <= most, row["score"]) for row in history if row["stage"] == stage]
    return max(seen)[1] if seen else None


def shown(key: Key, config: dict[str, Any]) -> str:
    """The command without this machine in it."""
    name = f"runs/{key['task']}-{key['model']}-{key['seed']}/dense"
    rows = ["--task", key["task"], "--data", "data"]
    return " ".join(["thresher", *command_of(key, config, source=name, rows=rows, out="runs/OUT")])


def dense_model(key: Key, setting: Setting, *, rows: Sequence[str], prefix: Sequence[str] = ()) -> Path | None:
    """The fine-tuned model of this task and seed, made by the first row that needs it."""
    own = {name: key[name] for name in ("task", "model", "seed")}
    out = setting.work / "-".join([*prefix, "dense", *(str(value) for value in own.values())])
    with _training[out.name]:
        if not (out / "dense").is_dir():
            source = str(setting.model(key["model"]))
            words = command_of({**own, "method": "dense"}, setting.config, source=source, rows=rows, out=str(out))
            stages = ["--finetune", "always", "--soft-epochs", "0", "--hard-epochs", "0"]
            if not _finished([*words, *stages], out, setting):
                return None
    return out / "dense"


def _finished(words: Sequence[str], out: Path, setting: Setting) -> bool:
    """Run a command until it ends, or stop it at the deadline; what it has saved is gone on from."""
    with setting.place() as free:
        if not free:
            return False
        partial = out.with_name(out.name + ".partial")
        saved = any((partial / name).exists() for name in SAVED)
        more = ["--resume"] if saved else ["--overwrite"] if partial.exists() else []
        setting.work.mkdir(parents=True, exist_ok=True)
        log = setting.work / f"{out.name}.log"
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "thresher", *words, *more], stdout=file, stderr=subprocess.STDOUT
            )
            while process.poll() is None:
                if time.monotonic() >= setting.deadline:
                    process.terminate()
                    process.wait()
                    return False
                time.sleep(PATIENCE)
    if process.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise RunError(f"{out.name} failed: {' '.join(last)[:300]}; see its log in the work folder")
    return True
