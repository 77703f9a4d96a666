"""Attention inside windows and with products of distances: by original positions, whatever was dropped between."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import (
    BATCHES,
    DEVICES,
    HALVES,
    SCORES,
    SPARE,
    assert_as_exact_as_plain_torch,
    doubled,
    numbers,
    starts,
)
from tests.models.families import in_pairs
from thresher.engine.kernels import counted
from thresher.engine.kernels.attention import attention, attention_reference
from thresher.engine.kernels.counted import counted_rows, counted_rows_reference
from thresher.engine.kernels.distances import Distances, distance_products
from thresher.engine.kernels.first import attend_first, attend_first_reference

HEADS = 2
BIG: dict[str, list[int]] = {
    "8192 tokens": [8192, 1, 513, 128],
    "like QNLI": [20 + 37 * i % 95 for i in range(256)],
    "512 tokens": [512] * 16,
}
WINDOWS = [0, 5, 64]
SEVERAL = ["mixed", "an empty run", "several blocks", "one past a tile"]


def places_of(lengths: list[int], device: str, *, seed: int = 0) -> Tensor:
    """Gaps of zero to four dropped tokens, other ones in every run; past the live rows what must not be read."""
    generator = torch.Generator().manual_seed(seed)
    runs = [torch.randint(1, 6, (n,), generator=generator).cumsum(0) - 1 for n in lengths]
    return torch.cat([*runs, torch.full((SPARE,), 10**6)]).int().to(device)


def distances_of(
    lengths: list[int],
    dtype: torch.dtype,
    device: str,
    *,
    heads: int = HEADS,
    head_width: int = 12,
    span: int = 24,
    terms: str = "both",
) -> Distances:
    """Near distances have an embedding each, far ones share it, and those beyond the ends are like the ends."""
    most = 5 * max(lengths)
    distance = torch.arange(1 - most, most)
    near = span // 2
    far = near + (distance.abs() - near).clamp(min=0) // 7
    index = torch.where(distance.abs() <= near, distance, distance.sign() * far)
    rows = (index + span).clamp(0, 2 * span - 1).int().to(device)
    keys, queries = (
        numbers(heads, 2 * span, head_width, dtype=dtype, device=device, seed=seed) if terms in ("both", term) else None
        for seed, term in ((5, "keys"), (6, "queries"))
    )
    return Distances(keys=keys, queries=queries, index=rows)


def exact(named: dict[str, Any]) -> dict[str, Any]:
    """In float64, for the truth."""
    found: dict[str, Any] = doubled(named)
    if (given := found.get("distances")) is not None:
        keys, queries = (None if part is None else part.double() for part in (given.keys, given.queries))
        found["distances"] = replace(given, keys=keys, queries=queries)
    return found


def check(
    lengths: list[int],
    dtype: torch.dtype,
    device: str,
    *,
    score: str | None = "attention",
    score_queries: int = 1,
    heads: int = HEADS,
    head_width: int = 12,
    **places: Any,
) -> None:
    live, cu_seqlens = sum(lengths), starts(lengths, device)
    qkv = numbers(live + SPARE, 3 * heads * head_width, dtype=dtype, device=device, live=live)
    named = {"heads": heads, "max_length": max(lengths), "positions": places_of(lengths, device), **places}
    judged: Any = {"score": score, "score_queries": score_queries}
    context, received = attention(qkv, cu_seqlens, **judged, **named)
    plain, rounded = attention_reference(qkv, cu_seqlens, **judged, **named)
    truth, scores = attention_reference(qkv.double(), cu_seqlens, **judged, **exact(named))
    assert_as_exact_as_plain_torch(context[:live], plain[:live], truth[:live])
    if score is None:
        assert received is None
    else:
        assert received is not None and scores is not None and rounded is not None
        allowed = float((rounded - scores)[:, :live].abs().max())  # products with distances are kept in the dtype
        found = float((received[:, :live].double() - scores[:, :live]).abs().max())
        assert found <= 2 * allowed + 2e-5 * (1 + float(scores.abs().max()))
    there = torch.tensor(lengths, device=device) > 0
    query = numbers(len(lengths), heads * head_width, dtype=dtype, device=device, seed=3)
    del named["max_length"]
    rest = (query, qkv[:, heads * head_width :].contiguous(), cu_seqlens)
    found_first, plain_first = (way(*rest, **named)[there] for way in (attend_first, attend_first_reference))
    true_first = attend_first_reference(*doubled(rest), **exact(named))[there]
    assert_as_exact_as_plain_torch(found_first, plain_first, true_first)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", BATCHES)
def test_windows_agree_with_the_twin(batch: str, window: int, device: str) -> None:
    check(BATCHES[batch], torch.float32, device, window=window)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
def test_distances_agree_with_the_twin(batch: str, device: str) -> None:
    lengths = BATCHES[batch]
    check(lengths, torch.float32, device, distances=distances_of(lengths, torch.float32, device), divisor=6.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("batch", "score_queries", "score"), in_pairs(SEVERAL, [0, 4, 8], SCORES))
def test_some_queries_stand_for_all(batch: str, score_queries: int, score: str, device: str) -> None:
    """Beside whatever else goes by places, and in runs of one tile and of several."""
    lengths, judged = BATCHES[batch], {"score": score, "score_queries": score_queries}
    check(lengths, torch.float32, device, **judged)
    check(lengths, torch.float32, device, window=9, **judged)
    check(lengths, torch.float32, device, distances=distances_of(lengths, torch.float32, device), **judged)
    reach = 5 * max(lengths)
    bias = numbers(2 * reach - 1, HEADS, dtype=torch.float32, device=device, seed=1)
    check(lengths, torch.float32, device, distance_bias=bias, **judged)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("score_queries", [0, 2, 8, 1000])
def test_the_list_of_queries_that_count_is_the_twins(
    score_queries: int, rows: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "ROWS", rows)
    lengths = [40, 3, 0, 100, 33, 16]
    cu_seqlens, positions = starts(lengths, device), places_of(lengths, device)
    given: Any = {"score_queries": score_queries, "short": 16}
    chosen, up_to = counted_rows(positions, cu_seqlens, **given)
    expected, expected_up_to = counted_rows_reference(positions, cu_seqlens, **given)
    for start, length in zip(cu_seqlens.tolist(), lengths, strict=False):
        if length > 16:
            run = slice(start, start + length)
            count = int(expected_up_to[start + length - 1])
            assert torch.equal(up_to[run], expected_up_to[run])
            assert torch.equal(chosen[start : start + count], expected[start : start + count])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("terms", ["keys", "queries"])
def test_one_term_and_all_at_once_agree_with_the_twin(terms: str, device: str) -> None:
    lengths = [5, 0, 140, 1]
    distances = distances_of(lengths, torch.float32, device, terms=terms)
    check(lengths, torch.float32, device, distances=distances, score="value")
    check(lengths, torch.float32, device, distances=distances, score=None, window=9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype: torch.dtype, score: str, device: str) -> None:
    lengths = BATCHES["mixed"]
    check(lengths, dtype, device, score=score, window=5)
    check([*lengths, 300], dtype, device, score=score, score_queries=4)
    check(lengths, dtype, device, score=score, distances=distances_of(lengths, dtype, device), divisor=6.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("score", [*SCORES, None])
@pytest.mark.parametrize("batch", BIG)
def test_big_batches(batch: str, score: str | None, dtype: torch.dtype) -> None:
    lengths, shape = BIG[batch], {"heads": 12, "head_width": 64}
    check(lengths, dtype, "cuda", score=score, window=64, **shape)
    for score_queries in (0, 4, 8, 16) if score else ():
        check(lengths, dtype, "cuda", score=score, score_queries=score_queries, **shape)
    check(lengths, dtype, "cuda", score=score, score_queries=8, window=64, **shape)
    distances = distances_of(lengths, dtype, "cuda", span=256, **shape)
    check(lengths, dtype, "cuda", score=score, distances=distances, divisor=192**0.5, **shape)


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_that_reaches_everything_is_none(device: str) -> None:
    lengths = [300, 3]
    qkv = numbers(sum(lengths), 3 * HEADS * 12, dtype=torch.float32, device=device)
    positions = places_of(lengths, device)[:-SPARE].contiguous()
    given: Any = {"heads": HEADS, "max_length": 300, "score": "attention", "positions": positions}
    wide, none = (attention(qkv, starts(lengths, device), window=window, **given) for window in (10**4, None))
    torch.testing.assert_close(wide[0], none[0])
    torch.testing.assert_close(wide[1], none[1])
    narrow, _ = attention(qkv, starts(lengths, device), window=0, **given)
    torch.testing.assert_close(narrow, qkv.chunk(3, dim=1)[2], msg="a token that sees itself alone takes its value")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score_queries", [1, 4])
def test_a_text_alone_is_the_same_text_in_a_batch(score_queries: int, device: str) -> None:
    lengths = [40, 140, 7]
    cu_seqlens, positions = starts(lengths, device), places_of(lengths, device)
    qkv = numbers(sum(lengths) + SPARE, 3 * HEADS * 12, dtype=torch.float32, device=device)
    given: Any = {"heads": HEADS, "score": "value", "score_queries": score_queries, "window": 9}
    given["distances"] = distances_of(lengths, torch.float32, device)
    together, received = attention(qkv, cu_seqlens, positions=positions, max_length=140, **given)
    assert received is not None
    for start, length in zip(cu_seqlens.tolist(), lengths, strict=False):
        rows = slice(start, start + length)
        alone, alone_received = attention(
            qkv[rows].contiguous(), starts([length], device), positions=positions[rows], max_length=length, **given
        )
        assert alone_received is not None
        assert torch.equal(alone, together[rows]) and torch.equal(alone_received, received[:, rows])


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_the_distances_that_there_are(device: str) -> None:
    lengths = [70, 0, 5]
    qkv = numbers(75 + SPARE, 3 * HEADS * 12, dtype=torch.float32, device=device, live=75)
    positions, distances = places_of(lengths, device), distances_of(lengths, torch.float32, device)
    found = distance_products(qkv, starts(lengths, device), positions, distances, max_length=70)
    for part, (table, embeddings) in enumerate(zip(found, (distances.keys, distances.queries), strict=True)):
        assert table is not None and embeddings is not None
        states = qkv[:75].chunk(3, dim=1)[part].view(75, HEADS, 12)
        expected = torch.einsum("rhd,hed->hre", states, embeddings)
        for start, end in ((0, 70), (70, 75)):
            at = positions[start:end].long()
            sign = -1 if part else 1
            rows = distances.index.long()[sign * (at[:, None] - at[None, :]) + len(distances.index) // 2]
            rows = rows.expand(HEADS, -1, -1)
            torch.testing.assert_close(table[:, start:end].gather(2, rows), expected[:, start:end].gather(2, rows))
