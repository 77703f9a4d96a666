"""Thresholds that hold a share of tokens in every layer: the shares, the thresholds for them, and the race."""

import math

import pytest
import torch

from tests.training.tiny import Recorder, gated_model, keyword_task, quick, trainer_for
from thresher.baselines import method_named
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.training import learned
from thresher.training.learned import ByQuantile, Shapes

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
    shapes = Shapes(2, 4)
    shapes.shares[1] = torch.tensor([1.0, 0.6, 0.3, 0.0])
    shapes.thresholds[1] = torch.tensor([0.0, 0.5, 0.5, math.inf])
    shapes.track(1, [1.0, 0.8, 0.2, 0.0])
    moved = shapes.thresholds[1].tolist()
    assert moved[0] == 0.0 and math.isinf(moved[3])
    assert moved[1] == pytest.approx(0.5 * math.exp(0.02)) and moved[2] == pytest.approx(0.5 * math.exp(-0.01))
    assert shapes.thresholds[0].tolist() == [0.0] * 4, "the other shape's stay"


def test_the_race_halves_twice_and_one_shape_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divergences are dictated: the third shape wins, and its thresholds are what the engine gets."""
    model = gated_model(layers=LAYERS)
    config = quick(method="learned", target_flops=0.6, max_steps=20)
    recorder = Recorder()
    trainer = trainer_for(model, config, method=method_named("learned"), task=keyword_task(), progress=recorder)
    method = trainer.method
    assert isinstance(method, learned.Learned)
    order = iter([0.4, 0.3, 0.1, 0.2, 0.15, 0.25])  # four shapes, then the better two: the third and the fourth
    monkeypatch.setattr(type(method), "_divergence_of", lambda self, index: next(order))
    trainer.fit()
    gates = gates_of(model)
    assert gates.rule is None, "thresholds are all that is left"
    assert next(order, None) is None
    finite = [value for value in gates.thresholds.tolist() if math.isfinite(value)]
    assert finite and all(value >= 0 for value in finite) and math.isinf(gates.thresholds[-1])
    notes = [text for text in recorder.notes if text.startswith("divergence")]
    assert len(notes) == 2 and notes[0].count("layers:") == 4 and notes[1].count("layers:") == 2
