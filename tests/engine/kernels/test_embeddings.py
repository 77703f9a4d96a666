"""Embeddings in one launch agree with the twin, with and without token types."""

from typing import Any

import pytest
import torch

from tests.engine.kernels.cases import DEVICES, HALVES, SPARE, assert_as_exact_as_plain_torch, doubled, numbers
from thresher.engine.kernels.embeddings import embed, embed_reference

WORDS, POSITIONS, TYPES = 50, 40, 2


def check(live: int, width: int, dtype: torch.dtype, device: str, *, types: str) -> None:
    def indices(limit: int, seed: int) -> torch.Tensor:
        drawn = torch.randint(0, limit, (live + SPARE,), generator=torch.Generator().manual_seed(seed))
        drawn[live:] = 10**6
        return drawn.to(device)

    given = (
        indices(WORDS, 0),
        indices(POSITIONS, 1),
        numbers(WORDS, width, dtype=dtype, device=device, seed=2),
        numbers(POSITIONS, width, dtype=dtype, device=device, seed=3),
        numbers(width, dtype=dtype, device=device, seed=4),
        numbers(width, dtype=dtype, device=device, seed=5),
    )
    named: dict[str, Any] = {"epsilon": 1e-12, "count": torch.tensor([live], dtype=torch.int32, device=device)}
    if types != "none":
        named["token_type"] = numbers(TYPES, width, dtype=dtype, device=device, seed=6)
    if types == "given":
        named["token_types"] = indices(TYPES, 7)
    found, plain = embed(*given, **named), embed_reference(*given, **named)
    truth = embed_reference(*doubled(given), **doubled(named))
    assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("types", ["none", "zeros", "given"])
@pytest.mark.parametrize(("live", "width"), [(1, 16), (37, 72)])
def test_agrees_with_the_twin(live: int, width: int, types: str, device: str) -> None:
    check(live, width, torch.float32, device, types=types)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype: torch.dtype, device: str) -> None:
    check(21, 96, dtype, device, types="given")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_big_batches(dtype: torch.dtype) -> None:
    check(12_801, 768, dtype, "cuda", types="given")
