"""Thresholds that hold a share of tokens in every layer: the shares, the thresholds for them, and the race."""

import math

import pytest
import torch

from tests.training.tiny import Recorder, gated_model, keyword_task, quick, trainer_for
from thresher.baselines import method_named
from thresher.errors import ConfigError
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.training import thresher as thresher_method
from thresher.training.falling import ByQuantile
from thresher.training.thresher import Race

LAYERS = 6


def test_the_threshold_leaves_the_share() -> None:
    """Two texts of five and three tokens, the first of each protected: of the six others, half stay."""
    alive = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    protected = torch.zeros_like(alive)
    protected[:, 0] = True
    scores = torch.tensor([[9.0, 0.1, 0.2, 0.9, 0.8], [9.0, 0.3, 0.7, 5.0, 5.0]])
    trace = Trace(protected=protected, alive=[alive])
    rule = ByQuantile([0.5, 1.0, 0.0])
    kept = rule.keep(0, scores, trace)
    assert kept.tolist() == [[True, False, False, True, True], [True, False, True, False, False]]
    trace.alive.append(kept)
    assert torch.equal(rule.keep(1, scores, trace), kept), "a share of 1 drops nothing more"
    assert rule.keep(2, scores, trace).sum() == 2, "a share of 0 leaves protected tokens"
    first, second, last = rule.thresholds()
    assert 0.3 < first < 0.7 and second == 0.0 and math.isinf(last)


def test_thresholds_move_towards_their_shares() -> None:
    shapes = Race(2, 4, floor=0.01)
    shapes.shares[1] = torch.tensor([1.0, 0.6, 0.3, 0.0])
    shapes.thresholds[1] = torch.tensor([0.0, 0.5, 0.5, math.inf])
    shapes.track(1, [1.0, 0.8, 0.2, 0.0])
    moved = shapes.thresholds[1].tolist()
    assert moved[0] == 0.0 and math.isinf(moved[3])
    assert moved[1] == pytest.approx(0.5 * math.exp(0.02)) and moved[2] == pytest.approx(0.5 * math.exp(-0.01))
    assert shapes.thresholds[0].tolist() == [0.0] * 4, "the other shape's stay"


def test_a_threshold_below_the_floor_moves_from_the_floor() -> None:
    shapes = Race(1, 3, floor=0.0001)
    shapes.shares[0] = torch.tensor([0.5, 0.5, 0.0])
    shapes.thresholds[0] = torch.tensor([0.0, 0.005, math.inf])
    shapes.track(0, [0.5, 0.5, 0.0])
    assert shapes.thresholds[0, :2].tolist() == pytest.approx([0.0001, 0.005])


def test_the_floor_is_in_the_unit_of_the_scores() -> None:
    task = keyword_task()
    for scale in ("relative", "paper"):
        model = gated_model(scale=scale)
        trainer = trainer_for(model, quick(method="thresher"), method=method_named("thresher"), task=task)
        mean = sum(trainer.rows.selection.lengths) / len(trainer.rows.selection.lengths)
        assert gates_of(model).rule.floor == pytest.approx(0.01 if scale == "relative" else 0.01 / mean)  # type: ignore[union-attr]


def test_evaluation_costs_the_target_wherever_training_drifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under dropout a layer keeps another share than without; here thresholds run away altogether."""
    monkeypatch.setattr(Race, "track", lambda self, index, kept: self.thresholds[index].mul_(1.3))
    model = gated_model(layers=LAYERS)
    config = quick(method="thresher", target_flops=0.6, max_steps=20, lr=1e-6)
    found = trainer_for(model, config, method=method_named("thresher"), task=keyword_task(128, selection=200)).fit()
    assert found.history[0]["relative_flops"] < 0.5
    assert found.history[-1]["relative_flops"] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize(("layers", "shapes"), [(1, 1), (2, 2), (4, 3), (6, 4), (12, 4)])
def test_shapes_differ_and_one_is_left_however_few_the_steps(layers: int, shapes: int) -> None:
    target = {1: 1.0, 2: 0.8}.get(layers, 0.6)
    for steps in (1, 2, 3, 7):
        model = gated_model(layers=layers)
        config = quick(method="thresher", target_flops=target, max_steps=steps)
        trainer = trainer_for(model, config, method=method_named("thresher"))
        rule = gates_of(model).rule
        assert isinstance(rule, Race) and len(rule.racing) == trainer.method.searches == shapes
        trainer.fit()
        assert rule.in_race() == [int(rule.racing.nonzero())]


def test_one_width_is_one_shape_without_a_race() -> None:
    """Half of the layers here, in the unit of twelve: tokens fall over three of six."""
    model = gated_model(layers=LAYERS)
    recorder = Recorder()
    config = quick(method="thresher", target_flops=0.6, max_steps=8, widths=[6])
    trainer = trainer_for(model, config, method=method_named("thresher"), progress=recorder)
    rule = gates_of(model).rule
    assert isinstance(rule, Race) and len(rule.racing) == 1
    trainer.fit()
    falls = -torch.diff(rule.shares[0], prepend=torch.ones(1))[:-1]
    assert falls.sum() == pytest.approx(1.0) and falls.max() <= 1 / 3 + 0.01
    assert not [text for text in recorder.notes if text.startswith("divergence")]


def test_the_last_layer_collapses_where_it_is_asked_to() -> None:
    for collapse_last in (True, False):
        model = gated_model(layers=LAYERS, collapse_last=collapse_last)
        config = quick(method="thresher", target_flops=0.95, max_steps=2)
        trainer_for(model, config, method=method_named("thresher")).fit()
        assert math.isinf(gates_of(model).thresholds[-1]) == collapse_last


def test_the_first_token_must_stay() -> None:
    model = gated_model(protect=("none",), collapse_last=False)
    with pytest.raises(ConfigError, match="'thresher' ends in layers that keep only protected tokens; add 'first'"):
        trainer_for(model, quick(method="thresher"), method=method_named("thresher"))


def test_the_race_halves_twice_and_one_shape_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divergences are dictated: the third shape wins, and its thresholds are what the engine gets."""
    model = gated_model(layers=LAYERS)
    config = quick(method="thresher", target_flops=0.6, max_steps=20)
    recorder = Recorder()
    trainer = trainer_for(model, config, method=method_named("thresher"), task=keyword_task(), progress=recorder)
    method = trainer.method
    assert isinstance(method, thresher_method.Thresher)
    order = iter([0.4, 0.3, 0.1, 0.2, 0.15, 0.25])  # four shapes, then the better two: the third and the fourth
    monkeypatch.setattr(type(method), "_divergence_of", lambda self, index: next(order))
    trainer.fit()
    gates = gates_of(model)
    assert gates.rule is None, "thresholds are all that is left"
    assert next(order, None) is None
    finite = [value for value in gates.thresholds.tolist() if math.isfinite(value)]
    assert finite and all(value >= 0 for value in finite) and math.isinf(gates.thresholds[-1])
    notes = [text for text in recorder.notes if text.startswith("divergence")]
    assert len(notes) == 2 and notes[0].count(": 0.") == 4 and notes[1].count(": 0.") == 2
    first, second = gates.about["race"]
    assert first["divergence_by_width"] == {"1": 0.4, "1.5": 0.3, "2.5": 0.1, "4": 0.2}
    assert second["divergence_by_width"] == {"2.5": 0.15, "4": 0.25} and second["step"] > first["step"]
