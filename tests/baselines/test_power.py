"""PoWER-BERT: what the soft extraction multiplies, how retention becomes counts, and what it costs."""

from typing import Any

import pytest
import torch

from tests.baselines.tiny import LAYERS, TARGET, trainer_of
from tests.training.test_objective import batch_of
from tests.training.tiny import Recorder, gated_model
from thresher.baselines.power import Power, Retention
from thresher.core.losses import task_loss
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.training.objective import model_inputs


def test_the_best_token_gets_the_first_number() -> None:
    rule = Retention(1, 3)
    with torch.no_grad():
        rule.retention.copy_(torch.tensor([[0.9, 0.5, 0.1]]))
    alive = torch.tensor([[True, True, True, True, False]])
    protected = torch.tensor([[True, False, False, False, False]])
    trace = Trace(protected=protected, alive=[alive])
    gate = rule.soft(0, torch.tensor([[0.1, 0.4, 2.0, 0.2, 9.0]]), trace)
    # Protected 1, padding 0; the fourth place lies beyond what training saw and gets the last number.
    torch.testing.assert_close(gate, torch.tensor([[1.0, 0.1, 0.5, 0.1, 0.0]]))


def test_retention_adds_up_to_counts_that_never_grow() -> None:
    rule = Retention(4, 5)
    with torch.no_grad():
        rule.retention.copy_(torch.tensor([1.0, 0.45, 0.7, 0.0])[:, None].expand(4, 5))
    rule.take_counts()
    assert rule.counts.tolist() == [5, 3, 3, 1]
    rule.take_counts(divided_by=2.0)
    assert rule.counts.tolist() == [3, 2, 2, 1]
    assert rule.to_dict()["name"] == "top_count", "a run is saved without what only training needs"


def soft(model: Any, **changes: Any) -> tuple[Any, Power]:
    method = trainer_of("power", model=model, **changes).method
    assert isinstance(method, Power)
    gates_of(model).set_mode("soft", soft_mask=method.soft_mask)
    return method.soft_loss(model, batch_of()), method


def test_at_the_start_nothing_is_extracted() -> None:
    model = gated_model(layers=LAYERS, dropout=0.0)
    loss, method = soft(model, target_flops=None, lambda_=0.3)
    gates_of(model).set_mode("off")
    stock = task_loss(model(**model_inputs(batch_of())).logits, batch_of()["labels"])
    assert loss.flops is not None and loss.flops.item() == pytest.approx(1.0)
    torch.testing.assert_close(loss.total, stock + 0.3, atol=1e-5, rtol=1e-5)


def test_later_layers_are_dearer() -> None:
    model = gated_model(layers=LAYERS, dropout=0.0)
    loss, method = soft(model, target_flops=None, lambda_=1e4)
    loss.total.backward()
    assert method.rule.retention.grad is not None
    by_layer = method.rule.retention.grad.sum(dim=1)
    assert (by_layer / by_layer[0]).tolist() == pytest.approx([1, 2, 3, 4, 5, 6], rel=0.05)
    assert gates_of(model).thresholds.grad is None


def test_the_soft_stage_learns_retention_within_its_range() -> None:
    model, recorder = gated_model(layers=LAYERS), Recorder()
    trainer = trainer_of("power", model=model, threshold_lr=0.05, max_steps=8, target_flops=0.5, progress=recorder)
    seen: list[torch.Tensor] = []
    original = trainer.method.after_soft_step

    def watch(flops: float | None) -> None:
        original(flops)
        seen.append(trainer.method.rule.retention.detach().clone())  # type: ignore[attr-defined]

    trainer.method.after_soft_step = watch  # type: ignore[method-assign]
    trainer.fit()
    assert all(bool(((value >= 0) & (value <= 1)).all()) for value in seen)
    flops = [numbers["flops"] for name, numbers in recorder.steps if name == "soft"]
    assert flops[-1] < flops[0] - 0.1  # type: ignore[operator]
    assert torch.equal(trainer.method.rule.retention, seen[-1]), "the hard stage leaves it alone"  # type: ignore[attr-defined]


def test_a_price_instead_of_a_target_gives_the_counts_it_gives() -> None:
    trainer = trainer_of("power", target_flops=None, lambda_=50.0, threshold_lr=0.1, max_steps=6)
    trainer.fit()
    rule = gates_of(trainer.model).rule
    assert isinstance(rule, Retention)
    counts = rule.counts.tolist()
    rule.take_counts()
    assert rule.counts.tolist() == counts
    assert counts[-1] < int(trainer.method.run.lengths.max())


def test_the_target_scales_the_counts() -> None:
    trainer = trainer_of("power")
    assert trainer.method.meet(TARGET) == pytest.approx(TARGET, abs=0.05)
    assert trainer.method.run.cost() == pytest.approx(TARGET, abs=0.05)
