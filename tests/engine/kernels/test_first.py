"""The first tokens' attention agrees with its twin, and with the first rows of the whole attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import (
    BATCHES,
    BIG_BATCHES,
    DEVICES,
    HALVES,
    SPARE,
    assert_as_exact_as_plain_torch,
    doubled,
    numbers,
    starts,
)
from thresher.engine.kernels.attention import attention_reference
from thresher.engine.kernels.first import attend_first, attend_first_reference


def inputs(
    lengths: list[int], dtype: torch.dtype, device: str, *, heads: int = 2, head_width: int = 12, biased: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    live, width = sum(lengths), heads * head_width
    query = numbers(len(lengths), width, dtype=dtype, device=device)
    key_value = numbers(live + SPARE, 2 * width, dtype=dtype, device=device, live=live, seed=1)
    named: dict[str, Any] = {"heads": heads}
    if biased:
        named["positions"] = torch.cat([torch.arange(n) * 3 + 2 for n in [*lengths, SPARE]]).int().to(device)
        named["distance_bias"] = numbers(6 * max(lengths) - 1, heads, dtype=torch.float32, device=device, seed=2)
    return (query, key_value, starts(lengths, device)), named


def check(lengths: list[int], dtype: torch.dtype, device: str, **shape: Any) -> None:
    given, named = inputs(lengths, dtype, device, **shape)
    here = torch.tensor(lengths, device=device) > 0
    found, plain = attend_first(*given, **named), attend_first_reference(*given, **named)
    truth = attend_first_reference(*doubled(given), **doubled(named))
    assert_as_exact_as_plain_torch(found[here], plain[here], truth[here])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
def test_agrees_with_the_twin(batch: str, device: str) -> None:
    check(BATCHES[batch], torch.float32, device, biased=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_bias_and_half_precision(dtype: torch.dtype, device: str) -> None:
    check(BATCHES["mixed"], dtype, device, biased=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("batch", BIG_BATCHES)
def test_big_batches(batch: str, dtype: torch.dtype) -> None:
    check(BIG_BATCHES[batch], dtype, "cuda", heads=12, head_width=64, biased=False)


def test_the_twins_agree() -> None:
    lengths = [5, 33, 1]
    (query, key_value, cu_seqlens), named = inputs(lengths, torch.float64, "cpu", biased=True)
    queries = torch.zeros(len(key_value), query.shape[1], dtype=torch.float64)
    queries[cu_seqlens[:-1].long()] = query
    whole, _ = attention_reference(
        torch.cat([queries, key_value], dim=1), cu_seqlens, score=None, max_length=33, **named
    )
    first = attend_first_reference(query, key_value, cu_seqlens, **named)
    torch.testing.assert_close(whole[cu_seqlens[:-1].long()], first)
