"""How each method sets its rule: shares, layers and ramps by hand."""

import math

import pytest

from tests.baselines.tiny import LAYERS, TARGET, trainer_of
from tests.training.tiny import keyword_task
from thresher.baselines.topk import quiet_layers, retain_shares
from thresher.models.attach import gates_of
from thresher.models.rules import TopShare


def test_retain_shares_by_hand() -> None:
    assert retain_shares(0.4, layers=6) == pytest.approx([1, 1, 1, 0.8, 0.6, 0.4])
    assert retain_shares(1.0, layers=6) == [1.0] * 6
    assert retain_shares(-1.0, layers=7) == pytest.approx([1, 1, 1, 0.5, 0.01, 0.01, 0.01]), "one in a hundred stays"
    assert min(retain_shares(0.0, layers=12)) == 0.01
    assert retain_shares(0.0, layers=2) == [1.0, 1.0], "a model of two layers has no other"


def test_deep_models_leave_more_layers_alone() -> None:
    assert [quiet_layers(layers) for layers in (4, 12, 20, 24)] == [3, 3, 3, 4]


@pytest.mark.parametrize("name", ["spatten", "random"])
def test_the_ratio_is_the_knob(name: str) -> None:
    trainer = trainer_of(name)
    reached = trainer.method.meet(TARGET)
    rule = gates_of(trainer.model).rule
    assert isinstance(rule, TopShare)
    shares = rule.shares.tolist()
    assert shares[:3] == [1.0] * 3
    assert 1.0 - shares[4] == pytest.approx(2 * (1.0 - shares[3])), "the decay is linear"
    assert reached == pytest.approx(TARGET, abs=0.01)
    assert trainer.method.run.cost() == reached, "what was reached stays in the rule"


def test_both_keep_as_many_tokens() -> None:
    kept = []
    for name in ("spatten", "random"):
        trainer = trainer_of(name, hard_epochs=0.0, soft_epochs=0.0)
        trainer.fit()
        kept.append(trainer.judge.predict(trainer.judge.batches, pruned=True).kept)
    assert kept[0] is not None and kept[0].equal(kept[1])


def test_order_of_the_scores() -> None:
    orders = {
        (name, cumulative): gates_of(trainer_of(name, cumulative_scores=cumulative).model).rule.order  # type: ignore[union-attr]
        for name in ("spatten", "random")
        for cumulative in (False, True)
    }
    assert orders == {
        ("spatten", False): "score",
        ("spatten", True): "cumulative",
        ("random", False): "random",
        ("random", True): "random",
    }


def test_manual_is_the_plain_ramp_scaled() -> None:
    trainer = trainer_of("manual", prune={"ramp": "late"})
    gates = gates_of(trainer.model)
    assert gates.thresholds.tolist() == pytest.approx([*(layer / 6 for layer in range(1, 6)), math.inf])
    trainer.method.meet(TARGET)
    unit = gates.thresholds[0].item()
    assert gates.thresholds[:5].tolist() == pytest.approx([unit * layer for layer in range(1, 6)])
    assert trainer.method.run.cost() == pytest.approx(TARGET, abs=0.01)


def test_collapse_takes_the_latest_layer_that_meets_the_target() -> None:
    trainer = trainer_of("collapse")
    gates, costs = gates_of(trainer.model), []
    for layer in range(LAYERS):
        gates.set_thresholds([0.0] * layer + [math.inf] * (LAYERS - layer))
        costs.append(trainer.method.run.cost())
    assert costs == sorted(costs)
    for layer, cost in enumerate(costs):
        assert trainer.method.meet(cost) == cost
        assert gates.thresholds.tolist() == [0.0] * layer + [math.inf] * (LAYERS - layer)
    assert trainer.method.meet(costs[2] + 0.02) == costs[2], "the next layer would be too dear"


def test_dense_keeps_every_token_and_learns_all_the_same() -> None:
    trainer = trainer_of("dense", task=keyword_task())
    state = trainer.fit()
    found = trainer.judge.predict(trainer.judge.batches, pruned=True)
    assert found.kept is not None and bool((found.kept == found.lengths[:, None]).all())
    assert state.best_fits, "a target that nothing is held to cannot be missed"
    assert trainer.teacher_logits.shape == (64, 2), "it learns from the same teacher"
