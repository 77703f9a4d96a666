"""Interrupted work goes on as if nothing had happened, to the bit."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.tiny import (
    Recorder,
    differing,
    gated_model,
    keyword_task,
    quick,
    tiny_tokenizer,
    trainer_for,
    weights_of,
)
from thresher.baselines import method_named
from thresher.config import RECIPES, TrainConfig
from thresher.errors import RunError
from thresher.models.attach import gates_of
from thresher.tasks.task import Task
from thresher.training.snapshot import read_snapshot
from thresher.training.trainer import Trainer, TrainingState

STEPS = 5
CHECKPOINTS = (2, 5)
# Dropout, accumulation and hidden distillation are on: each has state that a careless resume would lose.
CONFIG = quick(max_steps=STEPS, accumulate=2, distill_hidden=0.1)


class Interrupted(KeyboardInterrupt):
    """As a user would, in the middle of the run."""


class Interrupting(Recorder):
    """Raises after the given step of the given stage (after its checkpoint, if it has one)."""

    def __init__(self, stage: str, step: int) -> None:
        super().__init__()
        self._where = (stage, step)

    def step(self, **numbers: float | None) -> None:
        super().step(**numbers)
        done = self.begun[-1][2] + len([name for name, _ in self.steps if name == self.stage])
        if (self.stage, done) == self._where:
            raise Interrupted


class Told(Interrupting):
    """Gets a signal after the given step, as from Ctrl-C or a scheduler."""

    def __init__(self, stage: str, step: int, number: signal.Signals) -> None:
        super().__init__(stage, step)
        self._number = number

    def step(self, **numbers: float | None) -> None:
        try:
            super().step(**numbers)
        except Interrupted:
            signal.raise_signal(self._number)


def train(
    work: Path | None,
    *,
    progress: Recorder | None = None,
    resume: bool = False,
    seed: int = 0,
    config: TrainConfig = CONFIG,
    prune: dict[str, Any] | None = None,
    finetune: bool = True,
    task: Task | None = None,
    name: str = "bert",
) -> tuple[dict[str, Tensor], TrainingState, Trainer]:
    model = gated_model(name, seed=seed, **(prune or {}))
    trainer = Trainer(
        model,
        tiny_tokenizer(),
        task or keyword_task(),
        config,
        method=method_named(config.method),
        finetune=finetune,
        work=work,
        resume=resume,
        progress=progress,
        device="cpu",
    )
    state = trainer.fit()
    return weights_of(model), state, trainer


def interrupt(work: Path, stage: str, step: int, **changes: Any) -> None:
    with pytest.raises(Interrupted):
        train(work, progress=Interrupting(stage, step), **changes)


@pytest.fixture(scope="module")
def whole() -> tuple[dict[str, Tensor], TrainingState, Trainer]:
    """The uninterrupted run, which writes no states at all."""
    return train(None, progress=Recorder())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted early in the soft stage, to look at and not to change."""
    work = tmp_path_factory.mktemp("stopped")
    interrupt(work, "soft", 2)
    return work


@pytest.mark.parametrize("stage", ["finetune", "soft", "hard"])
@pytest.mark.parametrize("step", [*CHECKPOINTS, 3])
def test_a_resumed_run_is_the_uninterrupted_one(whole: Any, tmp_path: Path, stage: str, step: int) -> None:
    """At each checkpoint, and between two, where the steps since the last one are done again."""
    interrupt(tmp_path, stage, step)
    recorder = Recorder()
    # The resumed process starts with other random weights: everything must come from the saved state.
    weights, state, trainer = train(tmp_path, progress=recorder, resume=True, seed=9)
    expected, uninterrupted, original = whole
    assert differing(weights, expected) == []
    assert differing(trainer.dense_weights(), original.dense_weights()) == []
    assert state.history == uninterrupted.history
    assert state.dense == uninterrupted.dense
    assert (state.best_score, state.best_fits) == (uninterrupted.best_score, uninterrupted.best_fits)
    from_step = 2 if step == 3 else step
    assert f"resuming at stage {stage}, step {from_step}" in recorder.notes
    repeated = [done for name, _, done in recorder.begun if name == stage]
    assert repeated == ([from_step] if from_step < STEPS else [])


@pytest.mark.parametrize(("stage", "step"), [("finetune", 1), ("soft", 3), ("hard", 4)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_loses_no_step(whole: Any, tmp_path: Path, stage: str, step: int, number: signal.Signals) -> None:
    """Between two checkpoints too: the state is saved before the run ends."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, progress=Told(stage, step, number))
    assert signal.getsignal(number) is before
    recorder = Recorder()
    weights, state, _ = train(tmp_path, progress=recorder, resume=True, seed=9)
    assert f"resuming at stage {stage}, step {step}" in recorder.notes
    assert differing(weights, whole[0]) == []
    assert state.history == whole[1].history


def test_without_a_work_folder_a_signal_ends_the_run_at_once() -> None:
    recorder = Told("finetune", 1, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(None, progress=recorder)
    assert len(recorder.steps) == 1


def test_interrupted_twice(whole: Any, tmp_path: Path) -> None:
    interrupt(tmp_path, "finetune", 2)
    interrupt(tmp_path, "soft", 4, resume=True, seed=3)
    weights, state, _ = train(tmp_path, resume=True, seed=4)
    assert differing(weights, whole[0]) == []
    assert state.history == whole[1].history


@pytest.mark.parametrize("search", [0, 1])
def test_interrupted_while_looking_for_thresholds(whole: Any, tmp_path: Path, search: int) -> None:
    """Scaling changes thresholds step by step; the state to go on from is the one before it began."""
    stages = [name for name, _ in whole[2].progress.steps]
    before_soft = stages[: stages.index("soft")].count("thresholds")
    interrupt(tmp_path, "thresholds", 1 + search * before_soft)
    weights, _, _ = train(tmp_path, resume=True, seed=9)
    assert differing(weights, whole[0]) == []


def test_saving_states_changes_nothing(whole: Any, tmp_path: Path) -> None:
    weights, state, _ = train(tmp_path)
    assert differing(weights, whole[0]) == []
    assert state.history == whole[1].history
    # A finished run that is resumed is still that run.
    again, state, _ = train(tmp_path, resume=True, seed=9)
    assert differing(again, whole[0]) == []
    assert state.history == whole[1].history


def test_the_paper_recipe_resumes(tmp_path: Path) -> None:
    config = TrainConfig.recipe_named(
        "paper", precision="fp32", max_steps=4, batch_size=8, evals_per_stage=2, save_seconds=0.0
    )
    changes: dict[str, Any] = {"config": config, "prune": RECIPES["paper"]["prune"], "finetune": False}
    expected, state, _ = train(None, **changes)
    interrupt(tmp_path, "soft", 2, **changes)
    weights, again, _ = train(tmp_path, resume=True, seed=9, **changes)
    assert differing(weights, expected) == []
    assert again.history == state.history


def test_time_adds_up(tmp_path: Path) -> None:
    interrupt(tmp_path, "finetune", 2)
    trainer = trainer_for(gated_model(), CONFIG, finetune=True, work=tmp_path, resume=True)
    before = trainer.state.seconds
    assert before > 0
    assert trainer.fit().seconds > before


def test_changed_settings_are_named(stopped: Path) -> None:
    changed = quick(max_steps=STEPS, accumulate=2, distill_hidden=0.1, lr=5e-4, seed=1)
    with pytest.raises(RunError) as error:
        train(stopped, resume=True, config=changed)
    assert str(error.value) == ("the interrupted run had other settings for: lr, seed; resume with the same ones")


def test_a_run_that_was_stopped_under_a_methods_former_name_goes_on(tmp_path: Path) -> None:
    interrupt(tmp_path, "soft", 4)
    file = tmp_path / "state" / "about.json"
    about = json.loads(file.read_text(encoding="utf-8"))
    assert about["identity"]["method"] == "ltp"
    about["identity"]["method"] = "soft"
    file.write_text(json.dumps(about), encoding="utf-8")
    assert train(tmp_path, resume=True)[1].history


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prune": {"scale": "paper"}}, "prune settings"),
        ({"finetune": False}, "finetune"),
        ({"task": keyword_task(65)}, "data"),
        ({"task": keyword_task(selection=25)}, "data"),
        ({"name": "albert"}, "model"),
    ],
)
def test_another_run_is_not_resumed(stopped: Path, changes: dict[str, Any], named: str) -> None:
    """Thresholds in another unit, another model or other rows would make a run that never was."""
    with pytest.raises(RunError, match=f"had other settings for: {named};"):
        train(stopped, resume=True, **changes)


@pytest.mark.parametrize("file", ["about.json", "model.safetensors", "optimizer.safetensors"])
def test_a_damaged_state_is_named(stopped: Path, tmp_path: Path, file: str) -> None:
    copy = shutil.copytree(stopped, tmp_path / "copy")
    whole_file = (copy / "state" / file).read_bytes()
    (copy / "state" / file).write_bytes(whole_file[: len(whole_file) // 2])
    with pytest.raises(RunError, match="is damaged .* start anew with --overwrite"):
        train(copy, resume=True)


def test_resume_needs_a_folder_with_a_state(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="resume needs the work folder"):
        train(None, resume=True)
    with pytest.raises(RunError, match="nothing to resume in"):
        train(tmp_path, resume=True)


def test_a_state_holds_what_it_says(tmp_path: Path) -> None:
    interrupt(tmp_path, "hard", 2)
    files = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert files == [
        "about.json",
        "best.safetensors",
        "model.safetensors",
        "optimizer.safetensors",
        "teacher.safetensors",
    ]


def test_a_failed_write_keeps_the_run_resumable(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up at the second checkpoint of the soft stage; the first one is still there."""
    from thresher.training import snapshot

    calls: list[str] = []
    save = snapshot.save_file

    def full(tensors: dict[str, Tensor], path: Path) -> None:
        calls.append(path.stem)
        if calls.count("optimizer") == 4:
            raise OSError("no space left on device")
        save(tensors, path)

    monkeypatch.setattr(snapshot, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        train(tmp_path)
    monkeypatch.undo()
    weights, state, _ = train(tmp_path, resume=True, seed=9)
    assert differing(weights, whole[0]) == []
    assert state.history == whole[1].history


def test_the_gates_are_hard_after_resuming_a_finished_run(tmp_path: Path) -> None:
    interrupt(tmp_path, "hard", STEPS)
    model = gated_model(seed=9)
    trainer_for(model, CONFIG, finetune=True, work=tmp_path, resume=True).fit()
    assert gates_of(model).mode == "hard"
    assert torch.isfinite(gates_of(model).thresholds[:3]).all()


def test_a_young_state_is_not_written_again(tmp_path: Path) -> None:
    """A state is four times the model's size: with a long wait between two, only the end of a stage writes one."""
    rarely = replace(CONFIG, save_seconds=3600.0)
    interrupt(tmp_path / "early", "finetune", STEPS - 1, config=rarely)
    assert not (tmp_path / "early").exists()
    interrupt(tmp_path / "late", "hard", 4, config=rarely)
    state = read_snapshot(tmp_path / "late")[1]["standing"]
    assert (state["stage"], state["step"]) == ("soft", STEPS)


def test_how_steps_run_may_change_between_interruption_and_resumption(whole: Any, tmp_path: Path) -> None:
    interrupt(tmp_path, "soft", 4)
    changed = replace(CONFIG, record=False, save_seconds=5.0)
    assert differing(train(tmp_path, resume=True, seed=9, config=changed)[0], whole[0]) == []


@pytest.mark.parametrize("method", ["lat", "thresher"])
def test_what_another_run_remembered_in_the_folder_is_not_recalled(tmp_path: Path, method: str) -> None:
    config = quick(method=method, max_steps=STEPS, target_flops=0.6)
    train(tmp_path, config=config, finetune=False)
    trainer = Trainer(
        gated_model(),
        tiny_tokenizer(),
        keyword_task(),
        config,
        method=method_named(method),
        work=tmp_path,
        device="cpu",
    )
    assert not (tmp_path / "remembered.json").exists()
    assert trainer.method.run.recall() is None
