"""Pruning on the device decides exactly like its twin, and keeps rows in order."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.kernels.cases import BATCHES, BIG_BATCHES, DEVICES, SPARE, starts
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


def check(lengths: list[int], device: str, *, threshold: float, scale: str = "relative", **more: Any) -> Kept:
    arguments = inputs(lengths, device, **more)
    named: dict[str, Any] = {"threshold": threshold, "scale": scale, "max_length": max(lengths)}
    found, expected = prune(*arguments, **named), prune_reference(*arguments, **named)
    live, kept = sum(lengths), int(expected.cu_seqlens[-1])
    assert torch.equal(found.cu_seqlens, expected.cu_seqlens)
    assert torch.equal(found.keep[:live], expected.keep[:live])
    for name in ("rows", "positions", "protected"):
        assert torch.equal(getattr(found, name)[:kept], getattr(expected, name)[:kept]), name
    return expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
def test_agrees_with_the_twin(batch: str, device: str) -> None:
    lengths = BATCHES[batch]
    check(lengths, device, threshold=1.0)
    check(lengths, device, threshold=0.02, scale="paper")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("threshold", "kept"), [(0.0, 274), (-1.0, 274), (math.inf, 5), (1e-9, 274)])
def test_all_or_only_the_first(threshold: float, kept: int, device: str) -> None:
    assert int(check(BATCHES["mixed"], device, threshold=threshold).cu_seqlens[-1]) == kept


@pytest.mark.parametrize("device", DEVICES)
def test_ties_are_pruned(device: str) -> None:
    tied = check([60, 1, 30], device, threshold=1.0, levels=4)
    looser = check([60, 1, 30], device, threshold=0.999, levels=4)
    assert int(tied.cu_seqlens[-1]) < int(looser.cu_seqlens[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_more_tokens_and_runs_than_are_taken_at_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS", 32)
    monkeypatch.setattr(module, "COUNTS", 32)
    check([2] * 33 + [100], device, threshold=1.0, heads=1)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", ["relative", "paper"])
@pytest.mark.parametrize("batch", BIG_BATCHES)
def test_big_batches(batch: str, scale: str) -> None:
    check(BIG_BATCHES[batch], "cuda", threshold=1.0 if scale == "relative" else 0.01, scale=scale, heads=12)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any),
    threshold=st.floats(-0.5, 2.5, width=32),
    heads=st.integers(1, 13),
    seed=st.integers(0, 2**31),
    levels=st.none() | st.integers(1, 8),
)
def test_equal_scores_give_equal_decisions(
    lengths: list[int], threshold: float, heads: int, seed: int, levels: int | None
) -> None:
    check(lengths, HERE, threshold=threshold, heads=heads, seed=seed, levels=levels)
