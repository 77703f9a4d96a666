"""Pruning on the device decides exactly like its twin, and keeps rows in order."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.kernels.cases import BATCHES, BIG_BATCHES, DEVICES, SCORES, SPARE, starts
from thresher.core.scores import value_scores
from thresher.engine.kernels import prune as module
from thresher.engine.kernels.prune import Kept, prune, prune_reference
from thresher.engine.kernels.toolchain import RUNS_INTERPRETED

HERE = "cpu" if RUNS_INTERPRETED else "cuda"


def inputs(
    lengths: list[int], device: str, *, heads: int = 3, seed: int = 0, levels: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores around 1; with `levels`, few different ones, so that many are tied. The first tokens are protected."""
    live = sum(lengths)
    received = torch.rand(heads, live + SPARE, generator=torch.Generator().manual_seed(seed)) * 2
    if levels is not None:
        received = (received[:1] * levels / 2).round().expand(heads, -1) / levels * 2
    received = received.contiguous()
    received[:, live:] = float("nan")
    cu_seqlens = starts(lengths, "cpu")
    protected = torch.zeros(live + SPARE, dtype=torch.bool)
    protected[cu_seqlens[:-1][cu_seqlens.diff() > 0].long()] = True
    positions = torch.cat([torch.arange(n) * 2 for n in [*lengths, SPARE]]).int()
    return received.to(device), cu_seqlens.to(device), positions.to(device), protected.to(device)


def check(lengths: list[int], device: str, **more: Any) -> Kept:
    """`more` is for `inputs` or for prune."""
    names = ("threshold", "scale", "score", "score_queries")
    named = {name: more.pop(name) for name in names if name in more}
    return same_decisions(inputs(lengths, device, **more), **named, max_length=max(lengths))


def same_decisions(arguments: tuple[Tensor, Tensor, Tensor, Tensor], **named: Any) -> Kept:
    found, expected = prune(*arguments, **named), prune_reference(*arguments, **named)
    live, kept = int(arguments[1][-1]), int(expected.cu_seqlens[-1])
    assert torch.equal(found.cu_seqlens, expected.cu_seqlens)
    assert torch.equal(found.keep[:live], expected.keep[:live])
    for name in ("rows", "positions", "protected"):
        assert torch.equal(getattr(found, name)[:kept], getattr(expected, name)[:kept]), name
    return expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("batch", BATCHES)
def test_agrees_with_the_twin(batch: str, score: str, device: str) -> None:
    lengths = BATCHES[batch]
    check(lengths, device, threshold=1.0, score=score)
    check(lengths, device, threshold=0.02, score=score, scale="paper")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score_queries", [0, 4, 7])
@pytest.mark.parametrize("batch", BATCHES)
def test_some_queries_stand_for_all(batch: str, score_queries: int, device: str) -> None:
    """Scores are larger the fewer they are: here everything is received from all, so thresholds are set apart."""
    lengths, more = BATCHES[batch], max(1, score_queries // 2)  # positions are even here
    kept = check(lengths, device, threshold=1.0 * more, score_queries=score_queries)
    check(lengths, device, threshold=0.02 * more, scale="paper", score_queries=score_queries)
    by_value = check(lengths, device, threshold=1.0, score="value", score_queries=score_queries)
    assert torch.equal(by_value.keep, check(lengths, device, threshold=1.0, score="value").keep)
    if batch == "mixed" and score_queries:
        assert 5 < int(kept.cu_seqlens[-1]) < 274


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("threshold", "kept"), [(0.0, 274), (-1.0, 274), (math.inf, 5), (1e-9, 274)])
def test_all_or_only_the_first(threshold: float, kept: int, score: str, device: str) -> None:
    assert int(check(BATCHES["mixed"], device, threshold=threshold, score=score).cu_seqlens[-1]) == kept


@pytest.mark.parametrize("device", DEVICES)
def test_ties_are_pruned(device: str) -> None:
    tied = check([60, 1, 30], device, threshold=1.0, levels=4)
    looser = check([60, 1, 30], device, threshold=0.999, levels=4)
    assert int(tied.cu_seqlens[-1]) < int(looser.cu_seqlens[-1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
def test_more_tokens_and_runs_than_are_taken_at_once(score: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS", 32)
    monkeypatch.setattr(module, "COUNTS", 32)
    for score_queries in (1, 4):
        check([2] * 33 + [100], device, threshold=1.0, heads=1, score=score, score_queries=score_queries)


def scores_by_value(received: Tensor, lengths: list[int]) -> Tensor:
    """(total,) in float64, by the definition: what a token gets, it may as well get from itself alone."""
    parts = received[:, : sum(lengths)].double().cpu().split(lengths, dim=1)
    return torch.cat(
        [
            value_scores(part.diag_embed()[None], torch.ones(1, n), torch.ones(1, 1))[0]
            for part, n in zip(parts, lengths, strict=True)
        ]
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("magnitude", [1e-20, 1.0, 1e20])
def test_by_value_a_run_is_measured_by_its_own_mean(magnitude: float, device: str) -> None:
    """Whatever the size of its numbers, and of the others'. One in a million is where rounding may decide."""
    lengths = [50, 1, 0, 90, 7]
    received, *others = inputs(lengths, device)
    factors = torch.tensor([magnitude, 1.0, 1.0, 1 / magnitude, 3.0])
    received[:, : sum(lengths)] *= torch.repeat_interleave(factors, torch.tensor(lengths)).to(device)
    scores = scores_by_value(received, lengths)
    for threshold in (0.5, 1.0, 1.2):
        kept = same_decisions((received, *others), threshold=threshold, score="value", max_length=90)
        expected = (scores > threshold) | others[2][: sum(lengths)].cpu()
        differs = kept.keep[: sum(lengths)].cpu() != expected
        assert not (differs & ((scores / threshold - 1).abs() > 1e-6)).any()


@pytest.mark.parametrize("device", DEVICES)
def test_by_value_no_tile_and_no_neighbour_changes_the_last_bit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threshold is a token's own score, so that a mean that is a bit off would drop it, or keep it."""
    lengths = [100, *[3] * 9]
    received, _, positions, protected = inputs([100], device)
    among, together, *others = inputs(lengths, device, seed=1)
    among[:, :100] = received[:, :100]
    totals = received[0, :100] + received[1, :100] + received[2, :100]
    scores = module._over_mean(totals, torch.tensor([100], device=device))
    for token in (17, 55):
        for threshold in (scores[token], torch.nextafter(scores[token], scores.new_tensor(0.0))):
            named: dict[str, Any] = {"threshold": float(threshold), "score": "value", "max_length": 100}
            alone = prune(received, starts([100], device), positions, protected, **named).keep[:100]
            assert bool(alone[token]) == bool(threshold < scores[token])
            for tokens in (1024, 32):
                monkeypatch.setattr(module, "TOKENS", tokens)
                assert torch.equal(prune(among, together, *others, **named).keep[:100], alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("neighbours", [1, 9])
def test_by_value_where_all_values_are_zero(neighbours: int, device: str) -> None:
    """Or too small to be told from it: only the protected token stays, and no neighbour minds."""
    received, *others = inputs([40, *[30] * neighbours], device)
    for nothing in (0.0, 1e-45):
        received[:, :40] = nothing
        kept = same_decisions((received, *others), threshold=0.5, score="value", max_length=40).cu_seqlens.diff()
        assert kept[0] == 1 and bool((kept[1:] > 1).all())


@pytest.mark.gpu
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("scale", ["relative", "paper"])
@pytest.mark.parametrize("batch", BIG_BATCHES)
def test_big_batches(batch: str, scale: str, score: str) -> None:
    threshold = 1.0 if scale == "relative" else 0.01
    check(BIG_BATCHES[batch], "cuda", threshold=threshold, scale=scale, score=score, heads=12)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", BIG_BATCHES)
def test_ten_runs_are_equal(batch: str) -> None:
    arguments = inputs(BIG_BATCHES[batch], "cuda", heads=12)
    first, *others = (
        prune(*arguments, threshold=1.0, score="value", max_length=max(BIG_BATCHES[batch])) for _ in range(10)
    )
    live = int(arguments[1][-1])
    for again in others:
        assert torch.equal(first.keep[:live], again.keep[:live]) and torch.equal(first.cu_seqlens, again.cu_seqlens)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any),
    threshold=st.floats(-0.5, 2.5, width=32),
    heads=st.integers(1, 13),
    seed=st.integers(0, 2**31),
    levels=st.none() | st.integers(1, 8),
    score=st.sampled_from(SCORES),
    score_queries=st.integers(0, 9),
)
def test_equal_scores_give_equal_decisions(
    lengths: list[int],
    threshold: float,
    heads: int,
    seed: int,
    levels: int | None,
    score: str,
    score_queries: int,
) -> None:
    named: Any = {"score": score, "score_queries": score_queries}
    check(lengths, HERE, threshold=threshold, heads=heads, seed=seed, levels=levels, **named)
