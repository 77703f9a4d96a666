"""Long runs by the library's attention: as exact as the twin, the same in every batch, and inside a captured graph."""

from typing import Any

import pytest
import torch

from tests.engine.kernels.cases import BATCHES, DEVICES, HALVES, SCORES, starts
from tests.engine.kernels.test_attention import check, inputs
from thresher.engine.kernels import library
from thresher.engine.kernels.attention import WHOLE, attention, attention_reference

WIDTHS = [32, 64, 128]
LENGTHS = [600, 1, 257, 0, 256, 31, 1024]


@pytest.fixture
def for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FASTER", frozenset(WIDTHS))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [[300, 256, 0, 257], [1], [257] * 2100])
def test_lengths_of_long_runs(lengths: list[int], device: str) -> None:
    given = starts(lengths, device)
    found = library.long_lengths(given, short=256)
    assert torch.equal(found, library.long_lengths_reference(given, short=256))
    assert found.tolist() == [length if length > 256 else 0 for length in lengths]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("batch", ["several blocks", "one past a tile"])
def test_columns_from_a_log_sum_exp_to_base_e(monkeypatch: pytest.MonkeyPatch, batch: str, score: str) -> None:
    """The twin in the library's place: what is ours around it, also without a GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked: list[int] = []

    def twin(*given: Any, **named: Any) -> Any:
        asked.append(named["short"])
        return library.attend_long_reference(*given, **named)

    monkeypatch.setattr(library, "is_faster", lambda *given, **named: True)
    monkeypatch.setattr(library, "attend_long", twin)
    check(BATCHES[batch], torch.float32, device, score=score)
    assert asked == [WHOLE]


def test_only_where_it_can(for_all: None) -> None:
    half = torch.zeros(4, 3 * 64, dtype=torch.float16)
    assert not library.is_faster(half, heads=1, biased=False), "it runs on CUDA devices"


@pytest.mark.gpu
def test_only_heads_and_numbers_that_it_has(for_all: None) -> None:
    half = torch.zeros(4, 3 * 64, dtype=torch.float16, device="cuda")
    assert library.is_faster(half, heads=1, biased=False) and library.is_faster(half, heads=2, biased=False)
    assert not library.is_faster(half, heads=4, biased=False) and not library.is_faster(half, heads=1, biased=True)
    assert not library.is_faster(half.float(), heads=1, biased=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", WIDTHS)
def test_agrees_with_its_twin(width: int, dtype: torch.dtype) -> None:
    (qkv, cu_seqlens), named = inputs(LENGTHS, dtype, "cuda", head_width=width)
    sizes = {"heads": named["heads"], "max_length": 1024, "short": WHOLE}
    context, sums = library.attend_long(qkv, cu_seqlens, **sizes)
    exact, exact_sums = library.attend_long_reference(qkv.double(), cu_seqlens, **sizes)
    for start, length in zip(cu_seqlens.tolist(), LENGTHS, strict=False):
        rows = slice(start, start + length)
        torch.testing.assert_close(context[rows].double(), exact[rows], atol=2e-2, rtol=2e-2)
        if length > WHOLE:
            torch.testing.assert_close(sums[:, rows].double(), exact_sums[:, rows].double(), atol=1e-4, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", WIDTHS)
def test_attention_by_the_library(for_all: None, width: int, dtype: torch.dtype, score: str) -> None:
    check(LENGTHS, dtype, "cuda", head_width=width, score=score)


@pytest.mark.gpu
@pytest.mark.parametrize("score", [None, "value"])
def test_a_text_alone_is_the_same_text_in_a_batch(for_all: None, score: str | None) -> None:
    (qkv, cu_seqlens), named = inputs(LENGTHS, torch.float16, "cuda", head_width=64, score=score)
    context, received = attention(qkv, cu_seqlens, **named)
    for _ in range(4):
        again, _ = attention(qkv, cu_seqlens, **{**named, "max_length": 4096})
        assert torch.equal(context[: sum(LENGTHS)], again[: sum(LENGTHS)])
    for start, length in zip(cu_seqlens.tolist(), LENGTHS, strict=False):
        rows = slice(start, start + length)
        if length:
            given = (qkv[rows].contiguous(), starts([length], "cuda"))
            alone, alone_received = attention(*given, **{**named, "max_length": length})
            assert torch.equal(alone, context[rows])
            assert received is None or torch.equal(alone_received, received[:, rows])


@pytest.mark.gpu
def test_a_captured_graph_follows_starts_that_change(for_all: None) -> None:
    (qkv, cu_seqlens), named = inputs([700, 300, 24], torch.float16, "cuda", head_width=32, score="attention")
    attention(qkv, cu_seqlens, **named)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context, received = attention(qkv, cu_seqlens, **named)
    qkv.copy_(torch.randn_like(qkv))
    qkv[600:] = float("nan")  # fewer tokens are left
    cu_seqlens.copy_(starts([11, 589, 0], "cuda"))
    graph.replay()
    truth, scores = attention_reference(qkv[:600].double(), cu_seqlens, **named)
    assert received is not None and scores is not None
    torch.testing.assert_close(context[:600].double(), truth, atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(received[:, :600].double(), scores, atol=2e-5, rtol=2e-5)
