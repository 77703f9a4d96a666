"""Scores from some of the queries on the GPU, in texts of one tile and of several; without a GPU, interpreted."""

import pytest
import torch

from tests.engine.makers import engine_with, reference
from tests.engine.test_cuda_executor import (  # (a fixture, used by every test)
    DEVICE,
    HALVES,
    MODES,
    assert_same,
    executor,
    expected_of,
    needs_triton,  # noqa: F401
    texts,
)
from tests.engine.test_engine import SCORES
from tests.models.families import FAMILIES, SOME, pruned_model, wide_windows

FEW = (4, 8, 16, 0)
LONG = (300, 1, 131, 513, 64, 33)


@pytest.mark.parametrize("mode", MODES if DEVICE == "cuda" else MODES[1:])
@pytest.mark.parametrize(("name", "score_queries", "score"), [("bert", 8, "attention"), ("modernbert", 4, "value")])
def test_longer_than_a_tile(name: str, score_queries: int, score: str, mode: str) -> None:
    """A layer with a window finds its part of the list of queries that count."""
    model = pruned_model(name, changes=wide_windows(name, score_queries), score_queries=score_queries, score=score)
    ids = texts(model, (300, 1, 40))
    assert_same(executor(model, mode).compute(ids), expected_of(model, ids))


@pytest.mark.gpu
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("score_queries", FEW)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_agrees_with_the_reference(name: str, score_queries: int, score: str) -> None:
    """Of thousands of decisions rounding may flip a few, and what follows from them."""
    model = pruned_model(name, changes=wide_windows(name, score_queries), score_queries=score_queries, score=score)
    ids = texts(model, LONG)
    expected = expected_of(model, ids)
    assert int(expected.kept[:, -2].sum()) < 0.7 * sum(LONG)
    for mode in MODES:
        engine = executor(model, mode)
        for _ in range(2):  # a graph, and its replay
            found = engine.compute(ids)
            assert int((found.kept - expected.kept).abs().max()) <= 2
            same = (found.kept == expected.kept).all(dim=1)
            assert int(same.sum()) >= len(LONG) - 1
            torch.testing.assert_close(found.outputs[same], expected.outputs[same].float(), atol=2e-4, rtol=2e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("score_queries", FEW)
def test_ten_runs_and_both_ways_decide_alike(score_queries: int, dtype: str) -> None:
    """To the last bit in one way; and in half precision about as many tokens stay as in the reference."""
    model = pruned_model("bert", changes=wide_windows("bert", score_queries), score_queries=score_queries)
    ids = texts(model, LONG)
    expected = engine_with(model, reference(HALVES[dtype], DEVICE)).compute(ids).kept
    for mode in MODES:
        engine = executor(model, mode, dtype)
        first = engine.compute(ids)
        assert (first.kept[:, 0] - expected[:, 0]).abs().max() <= 8
        for _ in range(9):
            again = engine.compute(ids)
            assert torch.equal(first.outputs, again.outputs) and torch.equal(first.kept, again.kept)


@pytest.mark.gpu
@pytest.mark.parametrize("score_queries", FEW)
def test_a_text_does_not_notice_its_neighbours(score_queries: int) -> None:
    model = pruned_model("mpnet", SOME, changes=wide_windows("mpnet", score_queries), score_queries=score_queries)
    ids = texts(model, LONG)
    for mode in MODES:
        engine = executor(model, mode)
        together = engine.compute(ids)
        for row, text in enumerate(ids):
            assert torch.equal(engine.compute([text]).kept[0], together.kept[row])
