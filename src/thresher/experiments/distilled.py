"""Rows of models that learn from their dense selves on texts without labels: one run, judged in several domains."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.trained import ensured, folder_name, words_of

if TYPE_CHECKING:
    from thresher.tasks.task import Task

KEY = ("task", "model", "target", "seed")
_dense: dict[tuple[str, ...], tuple[dict[str, float], Any]] = {}
_measuring = threading.Lock()  # one model at a time on the device, and the dense one once


@dataclass(frozen=True)
class Kind:
    """Rerankers, or embedders: the folder of prepared rows in --data, the words that tell `thresher prune` what they
    are, how the test rows of a name are loaded, and the metric of a row's dense and pruned score."""

    folder: str
    words: tuple[str, ...]
    load: Callable[[Path, str], "Task"]
    metric: str


def keys(config: dict[str, Any]) -> list[Key]:
    return [
        {"task": task, "model": model, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model, targets in config["models"].items()
        for target in targets
        for task in config["tasks"]
    ]


def check(kind: Kind, setting: Setting) -> None:
    setting.data_folder()
    for model in setting.config["models"]:
        setting.model(model)


def folders(kind: Kind, key: Key, config: dict[str, Any]) -> list[str]:
    return [kind.folder]


def words(key: Key, kind: Kind, config: dict[str, Any], *, source: str, data: str, out: str) -> list[str]:
    """The words after `thresher` that train the row's run."""
    settings = {**config["train"], "target_flops": key["target"], "seed": key["seed"]}
    files = {"train": "train", "selection": "selection", "test": config["tasks"][0]}
    named = [word for flag, name in files.items() for word in (f"--{flag}", f"{data}/{kind.folder}/{name}.jsonl.xz")]
    return ["prune", source, *kind.words, *named, "--out", out, "--finetune", "never", *words_of(settings)]


def measure(kind: Kind, key: Key, setting: Setting) -> Row | None:
    """One domain of one run, or None where the deadline came first."""
    settings = {**setting.config["train"], "target_flops": key["target"]}
    name = folder_name(kind.folder, key["model"], key["target"], key["seed"], settings=settings, origin=[])
    out = setting.work / name
    source, data = str(setting.model(key["model"])), str(setting.data_folder())
    if not ensured(words(key, kind, setting.config, source=source, data=data, out=str(out)), out, setting):
        return None
    task = kind.load(setting.data_folder() / kind.folder, key["task"])
    with setting.place() as free, _measuring:
        return _judged(key, kind, task, out, setting) if free else None


def _judged(key: Key, kind: Kind, task: "Task", run: Path, setting: Setting) -> Row:
    """Dense and pruned on the domain's rows."""
    from thresher.evaluation.quality import evaluate, outputs_of
    from thresher.hardware import choose_device
    from thresher.models.attach import prune_
    from thresher.models.checkpoint import load, load_dense
    from thresher.models.defaults import mean_by_
    from thresher.tasks.metrics import cosines, neighbours_kept

    device, length, split = choose_device()[0], setting.config["train"]["max_length"], key["task"]
    embeds, known = task.spec.means == "embedding", (kind.folder, key["model"], split)
    if known not in _dense:
        model, tokenizer = load_dense(setting.model(key["model"]), whole=True)
        mean_by_(model, task.spec.means)
        prune_(model)
        model.to(device)
        found = evaluate(model, tokenizer, task, split=split, max_length=length, pruned=False)
        outputs = outputs_of(model, tokenizer, task, split=split, max_length=length) if embeds else None
        _dense[known] = (found.metrics, outputs)
    metrics, outputs = _dense[known]
    checkpoint = load(run)
    checkpoint.model.to(device)
    pruned = evaluate(checkpoint.model, checkpoint.tokenizer, task, split=split, max_length=length, dense=outputs)
    near: dict[str, float] = {}
    if embeds:
        own = outputs_of(checkpoint.model, checkpoint.tokenizer, task, split=split, max_length=length, pruned=True)
        near = {"cosine": float(cosines(own, outputs).mean()), "neighbours": neighbours_kept(own, outputs)}
    return {
        "metric": kind.metric,
        "dense": metrics[kind.metric],
        "pruned": pruned.metrics[kind.metric],
        "relative_flops": pruned.relative_flops,
        "engine_relative_flops": pruned.engine_relative_flops,
        "metrics_dense": metrics,
        "metrics_pruned": {**pruned.metrics, **near},
        "mean_length": pruned.mean_length,
        "rows": pruned.rows,
        "kept_per_layer": pruned.kept_per_layer,
        "train_seconds": checkpoint.manifest["seconds"],
        "command": "thresher "
        + " ".join(words(key, kind, setting.config, source=key["model"], data="data", out="OUT")),
    }
