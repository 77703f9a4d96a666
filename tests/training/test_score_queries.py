"""Training with scores from some of the queries: what comes out is judged, saved and served by the same rule."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.makers import cpu, engine_with, reference
from tests.training.tiny import gated_model, keyword_task, quick, tiny_tokenizer, trainer_for
from thresher.baselines import method_named
from thresher.engine.packed import PackedExecutor
from thresher.models.attach import gates_of
from thresher.models.checkpoint import load, save
from thresher.models.plan import plan_of
from thresher.models.predict import predict
from thresher.tasks.encode import encode, padded_batches


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("score_queries", [0, 4])
@pytest.mark.parametrize("method", ["thresher", "ltp"])
def test_a_few_steps(method: str, score_queries: int, score: str, tmp_path: Path) -> None:
    model = gated_model(score=score, score_queries=score_queries, dropout=0.0)
    before = gates_of(model).thresholds.clone()
    found = trainer_for(model, quick(method=method), method=method_named(method)).fit()
    assert 0.4 < found.history[-1]["relative_flops"] < 0.8
    assert not torch.equal(gates_of(model).thresholds, before)
    save(model, tiny_tokenizer(), tmp_path / "run")
    served = load(tmp_path / "run")
    assert plan_of(served.model).score_queries == gates_of(model).config.score_queries == score_queries
    assert served.manifest["prune"]["score_queries"] == score_queries
    data = encode(tiny_tokenizer(), keyword_task().selection, max_length=32, positions=40)
    wanted = predict(served.model, padded_batches(data, pad_id=0), pruned=True)
    assert wanted.kept is not None
    rows: list[Any] = [row.input_ids for row in data.rows]
    for make in (reference(torch.float64), cpu()):
        engine: PackedExecutor = engine_with(served.model, make)
        kept = engine.compute(rows).kept
        assert (kept != wanted.kept).any(dim=1).sum() <= 1, "rounding may flip one decision"
        assert int(kept[:, 0].sum()) <= int(wanted.lengths.sum()) and int(kept[:, 1].sum()) < int(wanted.lengths.sum())


def test_gradients_of_a_soft_stage_move_thresholds_by_these_scores() -> None:
    """The whole way: a soft stage alone, in which thresholds are learned through scores of few queries."""
    learned = []
    for score_queries in (1, 4):
        model = gated_model(score_queries=score_queries, dropout=0.0)
        trainer_for(model, quick(method="ltp", hard_epochs=0.0, threshold_lr=1e-2)).fit()
        learned.append(gates_of(model).thresholds.detach().clone())
        assert bool(learned[-1][:-1].isfinite().all())
    assert not torch.allclose(*(each[:-1] for each in learned))
