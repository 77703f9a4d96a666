"""Thresholds learned by gradient through decisions that are hard: the same numbers, and a gradient beside them."""

import math

import pytest
import torch

from tests.training.test_objective import batch_of, soft
from tests.training.tiny import LAYERS, gated_model, quick, trainer_for
from thresher.core.scores import attention_probabilities
from thresher.errors import ConfigError
from thresher.models.attach import encoder_shape, gates_of
from thresher.training.method import Ltp
from thresher.training.objective import soft_loss

TARGET = 0.6


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
@pytest.mark.parametrize("score", ["attention", "value"])
def test_the_soft_stage_computes_what_hard_pruning_does(name: str, score: str) -> None:
    thresholds = (0.8, 0.95, 1.0, math.inf) if name != "albert" else (0.9, 0.97, 1.0, math.inf)
    model = gated_model(name, thresholds=thresholds, dropout=0.0, score=score).eval()
    gates, inputs = gates_of(model), {k: v for k, v in batch_of(name=name).items() if k != "labels"}
    hard = model(**inputs).logits
    assert gates.trace is not None
    kept = gates.trace.kept()
    assert int(kept[:, 0].sum()) > int(kept[:, -2].sum()) > len(kept)
    gates.set_mode("soft", soft_mask="straight")
    straight = model(**inputs).logits
    torch.testing.assert_close(straight, hard, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gates.trace.kept(), kept.to(straight.dtype))


def test_thresholds_get_a_gradient_that_raises_them_where_tokens_cost() -> None:
    model = gated_model(thresholds=(0.5, 0.7, 0.8, math.inf), dropout=0.0)
    gates_of(model).temperature = 0.3
    found = soft(model, batch_of(), soft_mask="straight", target_flops=0.2, budget_weight=1000.0)
    found.total.backward()
    slope = gates_of(model).thresholds.grad
    assert slope is not None and bool(torch.isfinite(slope).all())
    assert (slope[: LAYERS - 1] < 0).all() and slope[-1] == 0, "far above the target, every threshold should rise"
    assert bool(torch.isfinite(model.bert.encoder.layer[0].attention.self.query.weight.grad).all())


def test_the_gradient_of_a_dead_key_is_bounded() -> None:
    """Its logit may be far above all that are alive."""
    logits = torch.tensor([[[[0.0, 1.0, 50.0]]]])
    alive = torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    found = attention_probabilities(logits, alive)
    assert found[..., 2].item() == 0.0
    torch.testing.assert_close(found[..., :2], logits[..., :2].softmax(dim=-1))
    found[0, 0, 0, 2].backward()
    assert alive.grad is not None and 0 < float(alive.grad[0, 2]) < 1


def test_it_begins_at_the_target_and_ends_there() -> None:
    model = gated_model(layers=6, score="value", ramp="falling")
    config = quick(method="ltp", target_flops=TARGET, soft_mask="straight", max_steps=12, soft_epochs=2, hard_epochs=2)
    trainer = trainer_for(model, config)
    gates = gates_of(model)
    gates.set_mode("soft", soft_mask="straight")
    assert trainer.method.meet(TARGET) == pytest.approx(trainer.method.run.cost(), abs=0.03)
    start = gates.thresholds.detach().clone()
    assert gates.rule is None and torch.isfinite(start[:-1]).all() and start[0] < start[-2], (
        "all but the last may learn"
    )
    state = trainer.fit()
    assert trainer.judge.evaluate(pruned=True)["relative_flops"] == pytest.approx(TARGET, abs=0.05)
    assert not torch.allclose(gates.thresholds[:-1] / gates.thresholds[2], start[:-1] / start[2], rtol=1e-3), "learned"
    assert [row["stage"] for row in state.history] == ["soft"] * 2 + ["hard"] * 2


def test_a_fall_needs_a_target() -> None:
    with pytest.raises(ConfigError, match="ramp = 'falling' is fitted to a FLOPs target; give target_flops"):
        trainer_for(gated_model(ramp="falling"), quick(target_flops=None, lambda_=0.1), method=Ltp)


def test_a_multiplier_prices_what_is_above_the_target() -> None:
    """In place of the squared distance: as much more loss, and as much more gradient, for each unit of FLOPs."""
    losses, slopes = [], []
    for price in (0.0, 2.0):
        model = gated_model(thresholds=(0.5, 0.7, 0.8, math.inf), dropout=0.0)
        gates_of(model).set_mode("soft", soft_mask="straight")
        gates_of(model).temperature = 0.3
        config = quick(method="ltp", soft_mask="straight", target_flops=TARGET, dual_rate=0.5)
        found = soft_loss(model, batch_of(), config=config, shape=encoder_shape(model), price=torch.tensor(price))
        found.total.backward()
        assert found.flops is not None
        losses.append(float(found.total.detach()) - price * (float(found.flops) - TARGET))
        slopes.append(gates_of(model).thresholds.grad)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert slopes[0] is not None and slopes[1] is not None and bool((slopes[1][:-1] < slopes[0][:-1]).all())


def test_the_multiplier_rises_above_the_target_and_falls_below_it() -> None:
    model = gated_model(layers=6, score="value", ramp="falling")
    settings = {"soft_mask": "straight", "max_steps": 8, "soft_epochs": 2, "hard_epochs": 2}
    trainer = trainer_for(model, quick(method="ltp", target_flops=TARGET, dual_rate=0.5, **settings))
    method = trainer.method
    assert isinstance(method, Ltp) and method.price is not None and float(method.price) == 0.0
    assert any(name.endswith("price") for name in model.state_dict()), "an interrupted run finds it again"
    for flops, price in ((0.8, 0.1), (0.8, 0.2), (0.5, 0.15), (0.0, 0.0), (None, 0.0)):
        method.after_soft_step(flops)
        assert float(method.price) == pytest.approx(price, abs=1e-6)
    trainer.fit()
    assert trainer.judge.evaluate(pruned=True)["relative_flops"] == pytest.approx(TARGET, abs=0.05)
    assert not any("price" in name for name in model.state_dict()), "nothing of the finished model"
    plain = trainer_for(gated_model(layers=6), quick(method="ltp", target_flops=TARGET)).method
    assert isinstance(plain, Ltp) and plain.price is None, "off where nobody asks for it"
    trainer_for(model, quick(method="ltp", target_flops=TARGET, dual_rate=0.5))  # and never finished
    again = trainer_for(model, quick(method="ltp", target_flops=TARGET)).method
    assert isinstance(again, Ltp) and again.price is None, "not another run's"
    with pytest.raises(ConfigError, match="dual_rate = 0.5 finds the price of FLOPs that lambda_ = 0.1 sets; give"):
        trainer_for(gated_model(), quick(method="ltp", target_flops=None, lambda_=0.1, dual_rate=0.5))
