"""Rows that are training runs: `thresher prune` in a process of its own, from a dense model that is fine-tuned once."""

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from thresher.config import without_flag
from thresher.errors import RunError
from thresher.experiments.answers import answers_of
from thresher.experiments.experiment import Key, Row, Setting
from thresher.workplace import has_state, work_of

PATIENCE = 0.3  # seconds between two looks at a process
TO_END = 20.0  # seconds that a process is given when it is asked to
DIGITS = 8  # of a digest in the name of a run
_training: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by the run's name


def settings_of(config: dict[str, Any], *, model: str, task: str) -> dict[str, Any]:
    """Settings of [train], then of [train.MODEL], then of [tasks.TASK.train] and [tasks.TASK.train.MODEL]."""
    found: dict[str, Any] = {}
    for table in (config.get("train", {}), config["tasks"][task].get("train", {})):
        found |= {name: value for name, value in table.items() if not isinstance(value, dict)}
        found |= table.get(model, {})
    return found


def resolved(key: Key, config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a run. A variant's are those of [variants.NAME], then of [tasks.TASK.variants.NAME]; its target
    is None where it names a lambda."""
    settings = settings_of(config, model=key["model"], task=key["task"])
    settings |= {"method": key["method"], "seed": key["seed"], **config.get("methods", {}).get(key["method"], {})}
    for table in (config, config["tasks"][key["task"]]):
        settings |= table.get("variants", {}).get(key.get("variant"), {})
    if key.get("target") is not None:
        settings["target_flops"] = key["target"]
    return settings


def words_of(settings: dict[str, Any]) -> list[str]:
    """What has no flag of its own is given with --set."""
    words = []
    for name, value in settings.items():
        said = str(value).lower() if isinstance(value, bool) else str(value)  # as TOML writes it
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        words += ["--set", f"{name}={said}"] if without_flag(name) else [flag, said]
    return words


def command_of(key: Key, config: dict[str, Any], *, source: str, rows: Sequence[str], out: str) -> list[str]:
    """The words after `thresher`."""
    return ["prune", source, *rows, "--out", out, *words_of(resolved(key, config))]


def folder_name(*parts: Any, settings: dict[str, Any], origin: Sequence[str]) -> str:
    """The parts, and digits that differ where settings or origin do: experiments share a work folder, and one must not
    take the runs of another that were trained otherwise."""
    plain = {name: float(value) if type(value) is int else value for name, value in settings.items()}  # 1 is 1.0
    digest = hashlib.sha256(json.dumps([plain, *origin], sort_keys=True).encode()).hexdigest()
    return "-".join([*map(str, parts), digest[:DIGITS]])


Fields = Callable[[str, dict[str, float]], Row]  # what a record says of a version, dense or pruned, by its metrics


def measure_trained(
    key: Key,
    setting: Setting,
    *,
    rows: Sequence[str] | None = None,
    name: str | None = None,
    split: str | None = None,
    more: Path | None = None,
    fields: Fields = lambda version, metrics: {},
) -> Row | None:
    """One row, or None where the deadline came first: the run then goes on from its last saved state. `rows`, `name`
    and `more` as in `trained_run`; `fields` adds metrics beside the score. `split` names one of several test sets: the
    run stays, for the rows of the others. `answers` are for a file beside the records."""
    out = trained_run(key, setting, rows=rows, name=name, more=more)
    if out is None:
        return None
    if split is None:
        setting.leftovers.append(out)  # a hundred models would fill the disk
    manifest = json.loads((out / "thresher.json").read_text(encoding="utf-8"))
    if split is not None:
        manifest["quality"] = {split: manifest["quality"][split]}
    command = shown(key, setting.config, setting.program, more=more)
    said = answers_of(out, key, setting, split=split) if rows is None else None
    found = {} if said is None else {"answers": said}
    return {**row_of(manifest), **fields_of(manifest, fields), "command": command, **found}


def fields_of(manifest: dict[str, Any], fields: Fields) -> Row:
    (found,) = manifest["quality"].values()
    versions = (fields(version, found[version]["metrics"]) for version in ("dense", "pruned"))
    return {name: value for one in versions for name, value in one.items()}


def trained_run(
    key: Key,
    setting: Setting,
    *,
    rows: Sequence[str] | None = None,
    name: str | None = None,
    more: Path | None = None,
) -> Path | None:
    """The folder of a finished run, trained now if need be; None where the deadline came first.

    `rows` replaces the words that name the task's rows, and `name` starts the names of the folders, where other
    experiments train on other rows. `more` is a file of rows without labels; the dense model does without it.
    """
    rows = rows or ["--task", key["task"], "--data", str(setting.data_folder())]
    prefix = [] if name is None else [name]
    dense = dense_model(key, setting, rows=rows, prefix=prefix)
    if dense is None:
        return None
    settings = resolved(key, setting.config)
    origin = [dense.parent.name, *([] if more is None else [more.name])]
    out = setting.work / folder_name(*prefix, *key.values(), settings=settings, origin=origin)
    rows = [*rows, *([] if more is None else ["--more-texts", str(more)])]
    words = command_of(key, setting.config, source=str(dense), rows=rows, out=str(out))
    return out if ensured([*words, "--finetune", "never"], out, setting) else None


def ensured(words: Sequence[str], out: Path, setting: Setting) -> bool:
    """Whether the run that these words make is there, made now if need be; False where the deadline came first."""
    with _training[out.name]:  # rows may share a run
        return out.is_dir() or _finished(words, out, setting)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """It is asked first, and has the time to say where it stopped."""
    process.terminate()
    try:
        process.wait(timeout=TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
        "selection_score": manifest["selection_score"],
        "train_seconds": manifest["seconds"],
        **({"race": manifest["race"]} if "race" in manifest else {}),
        "device": where["device"],
        "versions": where["versions"],
    }


def shown(key: Key, config: dict[str, Any], program: Sequence[str] = ("thresher",), *, more: Path | None = None) -> str:
    """The command without this machine in it."""
    name = f"runs/{key['task']}-{key['model']}-{key['seed']}/dense"
    rows = ["--task", key["task"], "--data", "data", *([] if more is None else ["--more-texts", f"runs/{more.name}"])]
    start = ["thresher"] if tuple(program) == ("thresher",) else ["python", "-m", *program]
    return " ".join([*start, *command_of(key, config, source=name, rows=rows, out="runs/OUT")])


def dense_model(key: Key, setting: Setting, *, rows: Sequence[str], prefix: Sequence[str] = ()) -> Path | None:
    """The fine-tuned model of this task and seed, made by the first row that needs it."""
    own = {name: key[name] for name in ("task", "model", "seed")}
    settings = resolved({**own, "method": "dense"}, setting.config) | {"soft_epochs": 0, "hard_epochs": 0}
    parts = [*prefix, "dense", *own.values()]
    out = setting.work / folder_name(*parts, settings=settings, origin=_without_folders(rows))
    source = str(setting.model(key["model"]))
    words = ["prune", source, *rows, "--out", str(out), *words_of(settings), "--finetune", "always"]
    return out / "dense" if ensured(words, out, setting) else None


def _without_folders(rows: Sequence[str]) -> list[str]:
    """The words that name the rows, whatever this machine's folders are."""
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [f"{flag} {Path(value).name}" for flag, value in pairs if flag != "--data"]


def _finished(words: Sequence[str], out: Path, setting: Setting) -> bool:
    """Run a command until it ends, or until this call must; what it has saved is gone on from."""
    with setting.place() as free:
        if not free:
            return False
        partial = work_of(out)
        more = ["--resume"] if has_state(partial) else ["--overwrite"] if partial.exists() else []
        setting.work.mkdir(parents=True, exist_ok=True)
        log = setting.work / f"{out.name}.log"
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *setting.program, *words, *more], stdout=file, stderr=subprocess.STDOUT
            )
            try:
                while process.poll() is None:
                    if setting.over():
                        return False
                    time.sleep(PATIENCE)
            finally:  # an interruption must not leave it running; where it has ended, this does nothing
                _ended(process)
    if process.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise RunError(f"{out.name} failed: {' '.join(last)[:300]}; see its log in the work folder")
    return True
