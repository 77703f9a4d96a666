"""Attention that scores as it goes agrees with the twin, and depends on nothing but the run itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import (
    BATCHES,
    BIG_BATCHES,
    DEVICES,
    HALVES,
    SCORES,
    SPARE,
    assert_as_exact_as_plain_torch,
    doubled,
    numbers,
    starts,
)
from thresher.engine.kernels.attention import attention, attention_reference

HEADS = 2


def inputs(
    lengths: list[int],
    dtype: torch.dtype,
    device: str,
    *,
    heads: int = HEADS,
    head_width: int = 12,
    biased: bool = False,
    score: str | None = "attention",
) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    live = sum(lengths)
    qkv = numbers(live + SPARE, 3 * heads * head_width, dtype=dtype, device=device, live=live)
    named: dict[str, Any] = {"heads": heads, "max_length": max(lengths), "score": score}
    if biased:
        reach = 2 * max(lengths)  # every second token is gone already
        positions = [torch.arange(n) * 2 for n in lengths] + [torch.full((SPARE,), 10**6)]
        named["positions"] = torch.cat(positions).int().to(device)
        named["distance_bias"] = numbers(2 * reach - 1, heads, dtype=torch.float32, device=device, seed=1)
    return (qkv, starts(lengths, device)), named


def check(lengths: list[int], dtype: torch.dtype, device: str, **shape: Any) -> None:
    given, named = inputs(lengths, dtype, device, **shape)
    live = sum(lengths)
    context, received = attention(*given, **named)
    plain, _ = attention_reference(*given, **named)
    truth, scores = attention_reference(*doubled(given), **doubled(named))
    assert_as_exact_as_plain_torch(context[:live], plain[:live], truth[:live])
    # Scores are float32 whatever the dtype of the model, so they must be float32-exact.
    assert received is not None and scores is not None and received.dtype == torch.float32
    torch.testing.assert_close(received[:, :live].double(), scores[:, :live], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_agrees_with_the_twin(batch: str, biased: bool, score: str, device: str) -> None:
    check(BATCHES[batch], torch.float32, device, biased=biased, score=score)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype: torch.dtype, score: str, device: str) -> None:
    check(BATCHES["mixed"], dtype, device, biased=True, score=score)
    check(BATCHES["full tiles"], dtype, device, score=score)


@pytest.mark.parametrize("device", DEVICES)
def test_value_vectors_of_length_zero(device: str) -> None:
    """Nothing is moved: exactly zero, in runs of one tile and of several."""
    (qkv, cu_seqlens), named = inputs([5, 300], torch.float32, device, score="value")
    qkv[:, 2 * qkv.shape[1] // 3 :] = 0.0
    _, received = attention(qkv, cu_seqlens, **named)
    assert received is not None and not received[:, :305].any()


@pytest.mark.parametrize("device", DEVICES)
def test_some_queries_are_found_by_positions_alone(device: str) -> None:
    given, named = inputs([5, 300], torch.float32, device)
    for way in (attention, attention_reference):
        with pytest.raises(ValueError, match="score_queries = 8 goes by original positions; give positions"):
            way(*given, **named, score_queries=8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("batch", BIG_BATCHES)
def test_big_batches(batch: str, biased: bool, score: str, dtype: torch.dtype) -> None:
    check(BIG_BATCHES[batch], dtype, "cuda", heads=12, head_width=64, biased=biased, score=score)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
def test_a_text_alone_is_the_same_text_in_a_batch(score: str, device: str) -> None:
    lengths = [40, 129, 7, 100]
    (qkv, cu_seqlens), named = inputs(lengths, torch.float32, device, score=score)
    context, received = attention(qkv, cu_seqlens, **named)
    assert received is not None
    for start, length in zip(cu_seqlens.tolist(), lengths, strict=False):
        rows = slice(start, start + length)
        alone, alone_received = attention(
            qkv[rows].contiguous(), starts([length], device), **{**named, "max_length": length}
        )
        assert alone_received is not None
        assert torch.equal(alone, context[rows]) and torch.equal(alone_received, received[:, rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
def test_room_for_longer_runs_and_more_launches_change_nothing(score: str, device: str) -> None:
    lengths = [*BATCHES["full tiles"], 530]
    given, named = inputs(lengths, torch.float32, device, score=score)
    live = sum(lengths)
    context, received = attention(*given, **named)
    assert received is not None
    for typical in (1, 100):
        roomy, roomy_received = attention(*given, **{**named, "max_length": 600, "typical": typical})
        assert roomy_received is not None
        assert torch.equal(context[:live], roomy[:live]) and torch.equal(received[:, :live], roomy_received[:, :live])
    unscored, nothing = attention(*given, **{**named, "score": None})
    assert nothing is None
    torch.testing.assert_close(unscored[:live], context[:live])


@pytest.mark.gpu
@pytest.mark.parametrize("score", SCORES)
def test_ten_runs_are_equal_to_the_bit(score: str) -> None:
    lengths = [4096, 200, 100, 60, 31]
    given, named = inputs(lengths, torch.float16, "cuda", heads=12, head_width=64, score=score)
    live = sum(lengths)
    context, received = attention(*given, **named)
    assert received is not None
    for _ in range(9):
        again, again_received = attention(*given, **named)
        assert again_received is not None
        assert torch.equal(context[:live], again[:live]) and torch.equal(received[:, :live], again_received[:, :live])
