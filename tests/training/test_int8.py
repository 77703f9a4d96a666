"""Training on in int8: decisions stay, the given teacher teaches, and an interruption is no harm."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_resume import Interrupted, Interrupting
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
from thresher.engine.find_scales import find_scales
from thresher.engine.rounding import round_
from thresher.models.attach import gates_of

CONFIG = quick(soft_epochs=0.0, max_steps=5, method="thresher", distill=1.0)
THRESHOLDS = (0.0, 0.7, 0.9, float("inf"))


def rounding_model() -> Any:
    """Dropout is on, which a careless resume would lose."""
    model = gated_model(thresholds=THRESHOLDS).eval()
    texts = tiny_tokenizer()([row.text for row in keyword_task().train])["input_ids"]
    round_(model, find_scales(model, [(ids, None) for ids in texts]))
    return model


def teacher() -> dict[str, torch.Tensor]:
    return stock_model(seed=7).state_dict()


def test_one_stage_of_fixed_decisions() -> None:
    model, seen = rounding_model(), Recorder()
    before = weights_of(model)
    state = trainer_for(model, CONFIG, teacher=teacher(), progress=seen).fit()
    assert [name for name, _, _ in seen.begun] == ["teacher", "hard"]
    changed = differing(before, weights_of(model))
    assert any("attention.self.query.weight" in name for name in changed)
    assert not [name for name in changed if "gates" in name], "neither thresholds nor scales"
    assert tuple(gates_of(model).thresholds.tolist()) == tuple(torch.tensor(THRESHOLDS).tolist())
    assert state.best_score is not None and [row["step"] for row in state.history] == [2, 5]


def test_the_teacher_is_the_one_that_was_given() -> None:
    """It is dense and rounds nothing, and the model keeps its own weights."""
    model = rounding_model()
    own = weights_of(model)
    trainer = trainer_for(model, CONFIG, teacher=teacher())
    dense = stock_model(seed=7).eval()
    found = trainer.judge.predict_with(trainer.dense_weights(), trainer.judge.batches)
    for rows, batch in trainer.judge.batches:
        with torch.no_grad():
            logits = dense(**{name: value for name, value in batch.items() if name != "labels"}).logits
        torch.testing.assert_close(found[rows], logits, atol=1e-5, rtol=1e-5)
    assert not differing(own, weights_of(model))


def test_products_are_rounded_while_it_learns() -> None:
    """The same steps in floating point lead elsewhere."""
    ends = []
    for rounds in (True, False):
        model = rounding_model()
        if not rounds:
            gates_of(model).rounding = None
        trainer_for(model, CONFIG, teacher=teacher()).fit()
        ends.append({name: value for name, value in weights_of(model).items() if "gates" not in name})
    assert differing(*ends)


def test_resumed_to_the_bit(tmp_path: Path) -> None:
    whole = rounding_model()
    trainer_for(whole, CONFIG, teacher=teacher(), work=tmp_path / "whole").fit()
    try:
        trainer_for(
            rounding_model(), CONFIG, teacher=teacher(), work=tmp_path / "a", progress=Interrupting("hard", 2)
        ).fit()
    except Interrupted:
        pass
    again = rounding_model()
    trainer_for(again, CONFIG, teacher=teacher(), work=tmp_path / "a", resume=True).fit()
    assert not differing(weights_of(whole), weights_of(again))


@pytest.mark.gpu
def test_steps_are_recorded_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding reads nothing but tensors. A byte more or less sends weights elsewhere, so that these are compared by
    what they have learned."""
    replays: list[int] = []
    original = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replays.append(1), original(self))[1])
    losses = []
    for record in (True, False):
        seen = Recorder()
        config = quick(soft_epochs=0.0, max_steps=24, method="thresher", record=record, dropout=False)
        trainer_for(rounding_model(), config, teacher=teacher(), progress=seen, device="cuda").fit()
        losses.append(torch.tensor(seen.losses("hard")))
        assert (len(replays) > 10) == record
        replays.clear()
    torch.testing.assert_close(losses[0], losses[1], atol=0.05, rtol=0.05)
