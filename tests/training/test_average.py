"""Weights averaged over the last steps: the mean is what is judged and kept, and training goes on from its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_resume import interrupt, train
from tests.training.tiny import differing, gated_model, quick, trainer_for, weights_of
from thresher.models.attach import gates_of
from thresher.training.average import Average
from thresher.training.trainer import Trainer

TARGET = 0.7


def test_the_mean_by_hand() -> None:
    model = gated_model()
    average = Average(model, first_step=2)
    seen = []
    for step in range(5):
        with torch.no_grad():
            model.classifier.weight.add_(0.1 * (step + 1))
        seen.append(model.classifier.weight.detach().clone())
        average.add(step)
    assert average.count == 3
    own = weights_of(model)
    with average.in_place():
        torch.testing.assert_close(model.classifier.weight, torch.stack(seen[2:]).mean(dim=0))
        gates_of(model).set_thresholds([0.3] * 4)
    assert differing(weights_of(model), own) == [], "weights and decisions are as they were"


def watched(method: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Trainer, list[Any], list[Any]]:
    """A trained model, the weights after each step of the hard stage, and what was judged: step, weights and cost."""
    target = 1.0 if method == "dense" else TARGET
    config = quick(method=method, target_flops=target, max_steps=None, hard_epochs=2, soft_epochs=0, **changes)
    trainer = trainer_for(gated_model(layers=6), config)
    after: list[Any] = []
    judged: list[Any] = []
    hold, evaluate = trainer.method.after_hard_step, trainer.judge.evaluate

    def held(step: int, **more: Any) -> None:
        hold(step, **more)
        after.append(trainer.model.classifier.weight.detach().clone())

    def looked(*, pruned: bool) -> dict[str, float]:
        judged.append((len(after), trainer.model.classifier.weight.detach().clone(), trainer.method.run.cost()))
        return evaluate(pruned=pruned)

    monkeypatch.setattr(trainer.method, "after_hard_step", held)
    monkeypatch.setattr(trainer.judge, "evaluate", looked)
    trainer.fit()
    return trainer, after, judged


@pytest.mark.parametrize("method", ["thresher", "manual", "spatten", "dense"])
def test_the_mean_of_the_last_steps_is_judged_at_the_cost_asked_for(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 rows in batches of 8, twice: 16 steps, of which the last 8 count; judged after 8 and 16."""
    trainer, after, judged = watched(method, monkeypatch, average=0.5)
    assert [step for step, _, _ in judged] == [8, 16]
    torch.testing.assert_close(judged[0][1], after[7], rtol=0, atol=0)
    torch.testing.assert_close(judged[1][1], torch.stack(after[8:]).mean(dim=0))
    if method in ("thresher", "manual"):
        assert judged[1][2] == pytest.approx(TARGET, abs=0.03)
    kept = trainer.model.classifier.weight
    assert any(torch.equal(kept, weights) for _, weights, _ in judged), "one of the judged models is kept"


def test_training_does_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    _, averaged, _ = watched("thresher", monkeypatch, average=0.5)
    _, plain, _ = watched("thresher", monkeypatch)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(averaged, plain, strict=True))


@pytest.mark.parametrize("method", ["thresher", "ltp"])
@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, method: str, step: int) -> None:
    """Before the mean begins, in it, and after its end."""
    config = quick(method=method, max_steps=5, average=0.5, evals_per_stage=4, soft_epochs=1 if method == "ltp" else 0)
    whole, state, _ = train(None, config=config, finetune=False)
    interrupt(tmp_path, "hard", step, config=config, finetune=False)
    weights, again, _ = train(tmp_path, resume=True, seed=9, config=config, finetune=False)
    assert differing(weights, whole) == []
    assert again.history == state.history
