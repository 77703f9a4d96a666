"""An interrupted run: nothing in --out, its state beside it, and --resume gives what an uninterrupted run gives."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.training import method, trainer

STEPS = 6
HOME = {"finetune": trainer, "soft": method, "hard": method}  # the module that calls the stage's loss
PRUNE = (
    f"prune {{model}} --train {{rows}} --out {{out}} --max-steps {STEPS} --batch-size 8 --target-flops 0.6 "
    "--method ltp --lr 1e-3 --precision fp32 --device cpu --set save_seconds=0"
)


@pytest.fixture(scope="module")
def places(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with dropout, whose random numbers must come back too, and without a head, so that all stages run."""
    folder = tmp_path_factory.mktemp("dropout")
    config = tiny.config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    return {"model": tiny.save_model(folder / "model", config, head=False), "rows": stock.rows}


@pytest.fixture(scope="module")
def uninterrupted(places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    tiny.succeeds(PRUNE, **places, out=out)
    return out


def interrupt(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Ctrl-C in the given step (from 0) of a stage."""
    stock_loss: Callable[..., Any] = getattr(HOME[stage], f"{stage}_loss")
    calls = 0

    def loss(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step + 1:
            raise KeyboardInterrupt
        return stock_loss(*args, **kwargs)

    monkeypatch.setattr(HOME[stage], f"{stage}_loss", loss)


@pytest.mark.parametrize(
    ("stage", "step", "lost"),
    [
        ("finetune", 5, 1),  # states are saved after steps 1, 3, 4 and 6
        ("soft", 2, 1),
        ("hard", 0, 0),  # the state is that of the soft stage's end
        ("hard", 3, 0),
        ("hard", 5, 1),
    ],
)
def test_resumed_run_is_the_uninterrupted_one(
    stage: str,
    step: int,
    lost: int,
    places: dict[str, Path],
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, stage, step)
        stopped = tiny.thresher(PRUNE, **places, out=out)
    assert stopped.code == 130
    assert stopped.err.splitlines() == [
        f"error: interrupted; {out}.partial has its state; the same command goes on with --resume"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["run.partial"]

    steps = 0
    with monkeypatch.context() as patch:
        for name in ("finetune", "soft", "hard"):
            stock_loss = getattr(HOME[name], f"{name}_loss")

            def count(*args: Any, stock_loss: Callable[..., Any] = stock_loss, **kwargs: Any) -> Any:
                nonlocal steps
                steps += 1
                return stock_loss(*args, **kwargs)

            patch.setattr(HOME[name], f"{name}_loss", count)
        tiny.succeeds(PRUNE + " --resume", **places, out=out)
    left = STEPS * (3 - ("finetune", "soft", "hard").index(stage)) - step
    assert steps == left + lost, "only the interval that was interrupted is done again"

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    whole, resumed = tiny.manifest(uninterrupted), tiny.manifest(out)
    assert resumed["thresholds"] == whole["thresholds"]
    assert resumed["history"] == whole["history"]
    assert resumed["quality"] == whole["quality"]
    for folder in (".", "dense"):
        expected, found = tiny.weights(uninterrupted / folder), tiny.weights(out / folder)
        assert set(expected) == set(found)
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_interrupted_before_anything_is_saved(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "finetune", 0)
    assert tiny.thresher(PRUNE, **places, out=tmp_path / "run").code == 130
    assert tiny.tree(tmp_path) == set()


def test_overwrite_starts_anew(places: dict[str, Path], uninterrupted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, "soft", 4)
        tiny.thresher(PRUNE + " --seed 5", **places, out=tmp_path / "run")
    assert (tmp_path / "run.partial").is_dir()
    tiny.succeeds(PRUNE + " --overwrite", **places, out=tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert tiny.manifest(tmp_path / "run")["thresholds"] == tiny.manifest(uninterrupted)["thresholds"]


def test_an_interruption_before_anything_was_saved_says_so(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "finetune", 0)
    stopped = tiny.thresher(PRUNE, **places, out=tmp_path / "run")
    assert stopped.code == 130 and "nothing was saved yet: there was nothing trained" in stopped.err


def test_a_stage_that_has_ended_is_saved_however_short(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "hard", 1)
    command = PRUNE.replace("save_seconds=0", "save_seconds=3600")
    assert command != PRUNE
    stopped = tiny.thresher(command, **places, out=tmp_path / "run")
    assert f"{tmp_path / 'run'}.partial has its state" in stopped.err
    about = json.loads((tmp_path / "run.partial" / "state" / "about.json").read_text(encoding="utf-8"))
    assert about["standing"]["stage"] == "soft"


def test_sigterm_is_heard_like_ctrl_c(places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers and schedulers send it; the step is done and saved; afterwards it means again what it meant before."""
    stock_loss = trainer.finetune_loss

    def told(*given: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return stock_loss(*given, **more)

    monkeypatch.setattr(trainer, "finetune_loss", told)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        stopped = tiny.thresher(PRUNE, **places, out=tmp_path / "run")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.code == 130 and "run.partial has its state; the same command goes on with --resume" in stopped.err
    about = json.loads((tmp_path / "run.partial" / "state" / "about.json").read_text(encoding="utf-8"))
    assert (about["standing"]["stage"], about["standing"]["step"]) == ("finetune", 1)
