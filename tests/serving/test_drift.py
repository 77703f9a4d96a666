"""Texts that keep other shares than the calibration's, or that the dense model answers otherwise, are noticed."""

from typing import Any

import numpy as np
import pytest

from thresher.core.heads import Head
from thresher.engine.answers import Answers
from thresher.serving.drift import DriftGuard, agreements, stability_index
from thresher.serving.gears import Gear, Measured
from thresher.serving.worker import Batch
from thresher.tokenizing.tokens import Tokens

DECILES = tuple(np.linspace(0.2, 0.8, 11))
OWN = Gear(1.0, 1.0, 0.98, 100)
TABLE = Measured((OWN,), DECILES, 1000, {})


def answers_of(logits: Any, ratios: Any) -> Answers:
    """Two classes, texts of 1000 tokens, one layer that keeps these shares."""
    kept = np.round(1000 * np.asarray(ratios))[:, None].astype(np.int32)
    outputs = np.stack([np.zeros(len(kept)), logits], axis=1).astype(np.float32)
    tokens = np.full(len(kept), 1000)
    return Answers(Head(means="classes"), ("no", "yes"), outputs, kept, tokens, np.zeros(len(kept), bool))


class Dense:
    """Computes nothing: the dense model says yes to all."""

    in_flight = 1

    def __init__(self) -> None:
        self.dials: list[float | None] = []

    def begin(self, tokens: Tokens, dial: float | None) -> Any:
        self.dials.append(dial)
        return tokens

    def finish(self, begun: Any) -> Answers:
        return answers_of(np.ones(len(begun)), np.ones(len(begun)))


def batch_of(logits: Any, ratios: Any, gear: Gear = OWN) -> Batch:
    tokens = Tokens.of([[1]] * len(ratios))
    return Batch([], tokens, answers_of(logits, ratios), gear, 1.0, [])


def drawn(low: float, high: float, count: int = 600) -> Any:
    return np.random.default_rng(0).uniform(low, high, count)


def test_the_index_is_small_for_the_same_texts_and_large_for_others() -> None:
    assert stability_index(drawn(0.2, 0.8, 2000), DECILES) < 0.05
    assert stability_index(drawn(0.6, 1.0, 2000), DECILES) > 1
    assert stability_index(np.full(500, 0.5), [0.5] * 11) < 0.05  # one value for all, as in the calibration


def test_other_shares_are_noted_and_fall_back_only_where_asked() -> None:
    for falls_back in (False, True):
        dense = Dense()
        guard = DriftGuard(TABLE, dense, share=0, falls_back=falls_back)  # type: ignore[arg-type]  # a stand-in
        guard.add(batch_of(np.ones(600), drawn(0.2, 0.8)))
        assert guard.drifted is None and guard.index is not None
        for _ in range(4):
            guard.add(batch_of(np.ones(600), drawn(0.7, 1.0)))
        assert guard.drifted is not None and "stability index" in guard.drifted
        guard.begin(Tokens.of([[1]]), 1.5)
        assert dense.dials == [0.0 if falls_back else 1.5] and guard.dense == falls_back


def test_texts_of_another_gear_say_nothing() -> None:
    guard = DriftGuard(TABLE, Dense(), share=1, falls_back=True)  # type: ignore[arg-type]  # a stand-in
    for _ in range(4):
        guard.add(batch_of(np.ones(600), drawn(0.0, 0.1), Gear(2.0, 2.0, 0.9, 1)))
    guard.look()
    assert guard.drifted is None and guard.agreement is None


@pytest.mark.parametrize(("share", "drifts"), [(0.02, False), (0.3, True)])
def test_the_dense_models_disagreement_is_noted(share: float, drifts: bool) -> None:
    guard = DriftGuard(TABLE, Dense(), share=1, falls_back=False)  # type: ignore[arg-type]  # a stand-in
    draw = np.random.default_rng(1)
    for _ in range(20):
        guard.add(batch_of(np.where(draw.random(16) < share, -1, 1), drawn(0.2, 0.8, 16)))
        guard.look()
    assert guard.agreement == pytest.approx(1 - share, abs=0.1)
    assert (guard.drifted is not None) == drifts


def test_agreement_of_every_head() -> None:
    a = answers_of([1, -1], [1, 1])
    assert agreements(a, answers_of([1, 1], [1, 1])) == [1, 0]

    def other(means: str, values: Any) -> Answers:
        outputs = np.asarray(values, np.float32)
        return Answers(Head(means=means), ("x", "y"), outputs, a.kept, a.tokens, a.truncated)

    assert agreements(other("labels", [[1, 1], [1, -1]]), other("labels", [[2, 3], [1, 1]])) == [1, 0]
    assert agreements(other("value", [[1.0], [3.0]]), other("value", [[1.05], [5.0]])) == [1, 0]
    assert agreements(other("score", [[0.0], [9.0]]), other("score", [[0.1], [-9.0]])) == [1, 0]
    cosines = agreements(other("embedding", [[1, 0], [1, 1]]), other("embedding", [[2, 0], [1, -1]]))
    assert cosines == pytest.approx([1, 0], abs=1e-6)
