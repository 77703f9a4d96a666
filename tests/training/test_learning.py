"""One whole run on a task that can be learned in seconds: quality, cost, and everything that is reported on the way."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.training.tiny import (
    Recorder,
    differing,
    gated_model,
    keyword_task,
    quick,
    stock_model,
    tiny_tokenizer,
    trainer_for,
    weights_of,
)
from thresher.config import TrainConfig
from thresher.models.attach import gates_of
from thresher.tasks.encode import encode, padded_batches
from thresher.training.budget import measured_flops
from thresher.training.trainer import Trainer, TrainingState


@dataclass
class Learned:
    """A run on the keyword task, long enough to learn it."""

    model: Any
    trainer: Trainer
    state: TrainingState
    recorder: Recorder
    config: TrainConfig


TARGET = 0.55


@pytest.fixture(scope="module")
def learned() -> Learned:
    config = quick(
        max_steps=None,
        batch_size=16,
        lr=2e-3,
        finetune_epochs=10,
        soft_epochs=4,
        hard_epochs=6,
        target_flops=TARGET,
        threshold_lr=1e-2,
    )
    model, recorder = gated_model(), Recorder()
    trainer = trainer_for(model, config, task=keyword_task(192, selection=96), finetune=True, progress=recorder)
    return Learned(model, trainer, trainer.fit(), recorder, config)


def selection_batches() -> Any:
    rows = keyword_task(1, selection=96).selection
    return padded_batches(encode(tiny_tokenizer(), rows, max_length=32, positions=None), pad_id=0)


def test_the_gates_end_in_hard_mode(learned: Learned) -> None:
    gates = gates_of(learned.model)
    assert gates.mode == "hard"
    assert not gates.thresholds.requires_grad
    assert all(value >= 0 for value in gates.thresholds.tolist()) and gates.thresholds[-1] == math.inf


def test_the_target_is_met_on_rows_it_was_not_calibrated_on(learned: Learned) -> None:
    measured = measured_flops(learned.model, selection_batches())
    assert abs(measured - TARGET) <= 0.06
    # What the model now costs is what the history says of one of the hard checkpoints.
    rows = [row for row in learned.state.history if row["stage"] == "hard"]
    assert any(row["relative_flops"] == pytest.approx(measured, abs=1e-6) for row in rows)


def test_the_dense_model_learns_the_task_and_the_pruned_one_keeps_it(learned: Learned) -> None:
    assert learned.state.dense["accuracy"] >= 0.9
    found = learned.trainer.judge.evaluate(pruned=True)
    assert found["accuracy"] >= 0.85
    assert found["score"] == learned.state.best_score
    assert learned.state.best_fits == (found["relative_flops"] <= TARGET + 0.01)


def test_keeping_the_keyword_is_learned_not_given(learned: Learned) -> None:
    """A random model pruned as hard is at chance, so the accuracy above comes from training."""
    model = gated_model(thresholds=gates_of(learned.model).thresholds.tolist(), seed=7)
    assert trainer_for(model, task=keyword_task(64, selection=96)).judge.evaluate(pruned=True)["accuracy"] < 0.7


def test_thresholds_were_learned_and_not_only_scaled(learned: Learned) -> None:
    """The late ramp begins 0, 1/3, 2/3, so any scaling keeps the second at half the third and the first at zero."""
    first, second, third, _ = gates_of(learned.model).thresholds.tolist()
    assert first > 0 or abs(second / third - 0.5) > 0.01


def test_history_has_every_evaluation_in_order(learned: Learned) -> None:
    steps = [(row["stage"], row["step"]) for row in learned.state.history]
    assert steps == [("finetune", 60), ("finetune", 120), ("soft", 24), ("soft", 48), ("hard", 36), ("hard", 72)]
    assert all(("relative_flops" in row) == (row["stage"] != "finetune") for row in learned.state.history)
    assert all(0 <= row["score"] <= 1 for row in learned.state.history)
    assert learned.state.seconds > 0


def test_progress_is_reported_stage_by_stage(learned: Learned) -> None:
    assert [name for name, _, _ in learned.recorder.begun] == [
        "finetune",
        "dense",
        "teacher",
        "thresholds",
        "soft",
        "thresholds",
        "hard",
    ]
    losses = learned.recorder.losses("finetune")
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    for stage in ("soft", "hard"):
        flops = [numbers["flops"] for name, numbers in learned.recorder.steps if name == stage]
        assert all(value is not None and 0 < value < 1 for value in flops)
    reached = [note for note in learned.recorder.notes if note.startswith("thresholds set")]
    assert len(reached) == 2 and all(f"of {TARGET} asked for" in note for note in reached)


def test_dense_weights_are_the_dense_model(learned: Learned) -> None:
    """They load into a stock model without gates, and are what the pruned model started from, not what it became."""
    dense = stock_model()
    dense.load_state_dict(learned.trainer.dense_weights())
    dense.eval()
    right = total = 0
    for _, batch in selection_batches():
        labels = batch.pop("labels")
        right += int((dense(**batch).logits.argmax(-1) == labels).sum())
        total += len(labels)
    assert right / total == pytest.approx(learned.state.dense["accuracy"])
    assert not torch.equal(dense.classifier.weight, learned.model.classifier.weight)


def test_frozen_word_embeddings_stay(learned: Learned) -> None:
    assert torch.equal(learned.model.get_input_embeddings().weight, gated_model().get_input_embeddings().weight)


def test_fit_again_changes_nothing(learned: Learned) -> None:
    before = weights_of(learned.model)
    learned.trainer.fit()
    assert differing(weights_of(learned.model), before) == []
