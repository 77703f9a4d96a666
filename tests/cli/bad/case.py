"""A command that must fail: its words, its one-line error, and the damage it starts from."""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.config import TrainConfig

Prepare = Callable[[Path, Stock, Path], None]


@dataclass(frozen=True)
class Bad:
    """One bad command. Its words may name {head}, {bare}, {rows}, {test}, {run} and {tmp}; `files` are made in {tmp}.

    `prune` stands for a prune command that is right but for the words added here.
    """

    name: str
    command: str
    says: tuple[str, ...]
    code: int = 1
    files: dict[str, str | bytes] = field(default_factory=dict)
    prepare: Prepare = lambda tmp, stock, run: None


PRUNE = "prune {head} --train {rows} --out {tmp}/out --device cpu"
EVAL = "eval {tmp}/run --test {test}"
QUANTIZE = "quantize {run} --train {rows} --out {tmp}/out"


# ---- things to damage


def copied_model(**changes: Any) -> Prepare:
    """{tmp}/model: the classifier, with changes to its config.json."""

    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(stock.head, tmp / "model")
        file = tmp / "model" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")

    return prepare


def truncated_weights(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(stock.head, tmp / "model")
    os.truncate(tmp / "model" / "model.safetensors", 1000)


def nan_weights(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(stock.head, tmp / "model")
    weights = tiny.weights(stock.head)
    weights["classifier.weight"][0, 0] = math.nan
    save_file(weights, tmp / "model" / "model.safetensors", metadata={"format": "pt"})


def without(*names: str) -> Prepare:
    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(stock.head, tmp / "model")
        for name in names:
            (tmp / "model" / name).unlink()

    return prepare


def other_order(tmp: Path, stock: Stock, run: Path) -> None:
    tiny.save_model(tmp / "model", tiny.classifier_config(("positive", "negative")))


def other_classes(tmp: Path, stock: Stock, run: Path) -> None:
    tiny.save_model(tmp / "model", tiny.classifier_config(("not_equivalent", "equivalent")))


def copied_run(**changes: Any) -> Prepare:
    """{tmp}/run: the finished run, with changes to its thresher.json."""

    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(run, tmp / "run")
        (tmp / "run" / "thresher.json").write_text(json.dumps({**tiny.manifest(run), **changes}), encoding="utf-8")

    return prepare


def broken_manifest(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(run, tmp / "run")
    file = tmp / "run" / "thresher.json"
    file.write_text(file.read_text(encoding="utf-8")[:100], encoding="utf-8")


def three_classes(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/run: a run whose weights have three outputs, while its thresher.json tells of two classes."""
    shutil.copytree(run, tmp / "run")
    tiny.save_model(tmp / "run", tiny.classifier_config(("a", "b", "c")))


def run_in_out(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(run, tmp / "out")


def partial(tmp: Path, stock: Stock, run: Path) -> None:
    (tmp / "out.partial" / "state").mkdir(parents=True)


def leftovers(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/out.partial: of a run that was interrupted before anything was saved to go on from."""
    (tmp / "out.partial").mkdir()
    (tmp / "out.partial" / "remembered.json").write_text("{}", encoding="utf-8")


def interrupted(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/out.partial: what an interrupted run with the default settings leaves behind."""
    from thresher.training.snapshot import write_snapshot

    write_snapshot(tmp / "out.partial", {}, {"identity": TrainConfig().to_dict(), "standing": {}})


def damaged_state(tmp: Path, stock: Stock, run: Path) -> None:
    interrupted(tmp, stock, run)
    (tmp / "out.partial" / "state" / "model.safetensors").write_bytes(b"half a file")


def csv(*rows: str) -> str:
    return "\n".join(("text,label", *rows)) + "\n"


ROWS = tuple(f"{text},{label}" for text, label in tiny.sentences(12))
