"""Tiny data for experiments that train, and `thresher prune` in this process instead of one of its own."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from thresher.experiments import trained
from thresher.experiments.experiment import Setting

QUICK = {"max_steps": 2, "batch_size": 8, "precision": "fp32", "device": "cpu", "finetune_epochs": 1}


def config(*tasks: str, **more: Any) -> dict[str, Any]:
    return {
        "models": ["tiny"],
        "seeds": [0],
        "compared": ["thresher", "lat"],
        "target": 0.6,
        "train": QUICK,
        "methods": {"lat": {"search_rounds": 1}},
        "tasks": {task: {"name": task.upper()} for task in tasks},
        **more,
    }


def places(folder: Path) -> dict[str, Path]:
    """A model without a head, a task of single texts and one of pairs."""
    tiny.save_model(folder / "models" / "tiny", tiny.config(), head=False)
    found = [(text, int(label == "positive")) for text, label in tiny.sentences(80)]
    rows = {
        "sst2": [{"sentence": text, "label": label} for text, label in found],
        "qnli": [
            {"question": text, "sentence": found[i * i % 80][0], "label": label}
            for i, (text, label) in enumerate(found)
        ],
    }
    for task, lines in rows.items():
        (folder / "data" / task).mkdir(parents=True)
        tiny.write_rows(folder / "data" / task / "train.jsonl", lines[:50])
        tiny.write_rows(folder / "data" / task / "validation.jsonl", lines[50:])
    return {"models": folder / "models", "data": folder / "data", "work": folder / "work"}


def without_digest(name: str) -> str:
    """The part of a run's name that people read."""
    readable, _, digest = name.rpartition("-")
    assert len(digest) == trained.DIGITS and set(digest) <= set("0123456789abcdef"), name
    return readable


def train_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Starting processes takes longer than training tiny models in them; returns the names of what is trained, without
    digests."""
    names: list[str] = []

    def finished(words: Sequence[str], out: Path, setting: Setting) -> bool:
        names.append(without_digest(out.name))
        tiny.succeeds(shlex.join(words))
        return True

    monkeypatch.setattr(trained, "_finished", finished)
    return names


def endless_trainings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every training be a process that sleeps; in the folder returned each leaves a file named by its number."""
    started = folder / "started"
    started.mkdir()
    script = folder / "sleeps"
    script.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(started))}/$$\nexec sleep 100000\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(trained.sys, "executable", str(script))
    return started


def wait_for(folder: Path, count: int) -> None:
    """Until there are so many files in it; a test that waits for ever is ended by its own limit."""
    while len(list(folder.iterdir())) < count:
        time.sleep(0.02)
