"""transformers says nothing while a command runs, in any of its processes, and speaks again afterwards."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.quiet import FOR_CHILDREN, quiet

WORDS = r"Loading weights|Writing model|LOAD REPORT|newly initialized|it/s\]"


def state() -> tuple[int, bool, list[str | None]]:
    logging = transformers.logging
    return logging.get_verbosity(), logging.is_progress_bar_enabled(), [os.environ.get(name) for name in FOR_CHILDREN]


def test_a_command_is_quiet_and_leaves_the_libraries_as_they_were(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thresher.models import checkpoint

    for name in FOR_CHILDREN:
        monkeypatch.delenv(name, raising=False)
    transformers.logging.set_verbosity_info()
    monkeypatch.setattr(transformers.utils.logging, "_tqdm_active", True)
    monkeypatch.setattr("huggingface_hub.utils.enable_progress_bars", lambda: None)  # warns where users forbid them
    plain, seen, before = checkpoint.load, [], state()

    def load(path: Path) -> checkpoint.Checkpoint:
        seen.append(state())
        return plain(path)

    monkeypatch.setattr(checkpoint, "load", load)
    done = tiny.succeeds("explain {run} film", run=finished)
    assert seen == [(transformers.logging.ERROR, False, list(FOR_CHILDREN.values()))]
    assert done.err == "" and not re.search(WORDS, done.out)
    assert state() == before
    assert tiny.thresher("explain {run} ' '", run=finished).code == 1 and state() == before


def test_python_is_quiet_too(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Opening and saving a run shows no bars of transformers, whose own calls show them as before."""
    monkeypatch.setattr(transformers.utils.logging, "_tqdm_active", True)
    monkeypatch.setattr("huggingface_hub.utils.enable_progress_bars", lambda: None)
    thresher.Engine.load(finished)
    run = thresher.load(finished)
    thresher.save(run.model, run.tokenizer, tmp_path / "again")
    assert capfd.readouterr() == ("", "")
    transformers.AutoModelForSequenceClassification.from_pretrained(finished)
    assert re.search(WORDS, capfd.readouterr().err)


def test_the_last_thread_out_brings_the_settings_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.utils.logging, "_tqdm_active", True)
    monkeypatch.setattr("huggingface_hub.utils.enable_progress_bars", lambda: None)
    before = state()
    first, second = quiet(), quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not transformers.logging.is_progress_bar_enabled()
    second.__exit__(None, None, None)
    assert state() == before


@pytest.mark.slow
def test_processes_of_a_search_are_quiet_and_share_its_trials(stock: Stock, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    words = ["search", str(stock.head), "--train", str(stock.rows), "--test", str(stock.test), "--workers", "2"]
    quick = "--max-drop 30% --max-steps 2 --batch-size 8 --precision fp32 --device cpu --max-trials 3".split()
    command = [sys.executable, "-m", "thresher", *words, "--out", str(tmp_path / "run"), *quick]
    loud = {name: value for name, value in os.environ.items() if name not in FOR_CHILDREN}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=loud)
    assert not re.search(WORDS, done.stdout + done.stderr)
    report = json.loads((tmp_path / "run" / "pareto.json").read_text(encoding="utf-8"))
    trained, given_up = {point["target"] for point in report["points"]}, set(report["given_up"])
    assert len(trained) + len(given_up) == 3 and not trained & given_up
