"""Runs that are not one tile, in all tiles that there are for them: as exact as the twin, the same in every batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import DEVICES, HALVES, SCORES, starts
from tests.engine.kernels.test_attention import check, inputs
from tests.engine.kernels.test_places import check as check_placed
from thresher.engine.kernels import tiles
from thresher.engine.kernels.attention import attention, attention_reference
from thresher.engine.kernels.tiles import RUNGS, Tiles, fitting, rungs

WIDTHS = sorted(RUNGS)
LENGTHS = [300, 1, 2, 63, 64, 65, 0, 127, 128, 129, 513]
VERY_LONG = [1100, 0, 70, 1024, 3]  # of both rungs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", WIDTHS)
def test_agrees_with_the_twin(width: int, dtype: torch.dtype, score: str, device: str) -> None:
    check(LENGTHS, dtype, device, head_width=width, score=score)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_very_long_runs_agree_with_the_twin(width: int, device: str) -> None:
    check(VERY_LONG, torch.float16, device, heads=1, head_width=width, score="value")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score_queries", [0, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_some_queries_agree_with_the_twin(width: int, score_queries: int, device: str) -> None:
    """Gathered from the list, with keys as rows; and inside windows, with queries as rows."""
    for window in (None, 40):
        judged: Any = {"score": "value", "score_queries": score_queries, "window": window}
        check_placed(LENGTHS, torch.float16, device, head_width=width, **judged)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [12, 48, 80])
def test_heads_that_do_not_fill_a_tile(width: int, device: str) -> None:
    """No descriptor can leave out the columns that are another head's."""
    check([130, 5, 300], torch.float16, device, head_width=width)


@pytest.mark.gpu
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", WIDTHS)
def test_many_long_runs(width: int, dtype: torch.dtype, score: str) -> None:
    check([4096, *LENGTHS, *VERY_LONG] + [512] * 8, dtype, "cuda", heads=12, head_width=width, score=score)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("score", [None, "value"])
def test_a_text_alone_is_the_same_text_in_a_batch(score: str | None, width: int, device: str) -> None:
    lengths = [70, 0, 300, 1030]
    (qkv, cu_seqlens), named = inputs(lengths, torch.float16, device, heads=1, head_width=width, score=score)
    context, received = attention(qkv, cu_seqlens, **named)
    for start, length in zip(cu_seqlens.tolist(), lengths, strict=False):
        if length:
            rows = slice(start, start + length)
            given = (qkv[rows].contiguous(), starts([length], device))
            alone, alone_received = attention(*given, **{**named, "max_length": length})
            assert torch.equal(alone, context[rows])
            if received is not None:
                assert alone_received is not None and torch.equal(alone_received, received[:, rows])


@pytest.mark.gpu
@pytest.mark.parametrize("score_queries", [1, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_ten_times_are_equal_to_the_bit(width: int, score_queries: int) -> None:
    lengths = [4096, 600, 200, 70]
    given, named = inputs(lengths, torch.float16, "cuda", heads=12, head_width=width, score="value")
    named |= {"positions": in_order(lengths, len(given[0])), "score_queries": score_queries}
    live = sum(lengths)
    context, received = attention(*given, **named)
    for _ in range(9):
        again, again_received = attention(*given, **named)
        assert received is not None and again_received is not None
        assert torch.equal(context[:live], again[:live]) and torch.equal(received[:, :live], again_received[:, :live])


@pytest.mark.gpu
@pytest.mark.parametrize("score_queries", [1, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_captured_graph_follows_starts_that_change(width: int, score_queries: int) -> None:
    (qkv, cu_seqlens), named = inputs([1200, 300, 24], torch.float16, "cuda", head_width=width)
    named |= {"positions": in_order([1200, 300, 24], len(qkv)), "score_queries": score_queries}
    attention(qkv, cu_seqlens, **named)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context, received = attention(qkv, cu_seqlens, **named)
    qkv.copy_(torch.randn_like(qkv))
    qkv[700:] = float("nan")  # fewer tokens are left
    cu_seqlens.copy_(starts([11, 689, 0], "cuda"))
    named["positions"].copy_(in_order([11, 689, 0], len(qkv)))
    graph.replay()
    truth, scores = attention_reference(qkv.double(), cu_seqlens, **named)
    assert received is not None and scores is not None
    torch.testing.assert_close(context[:700].double(), truth[:700], atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(received[:, :700].double(), scores[:, :700], atol=2e-5, rtol=2e-5)


def in_order(lengths: list[int], capacity: int) -> Tensor:
    found = torch.cat([torch.arange(length) for length in lengths])
    return torch.nn.functional.pad(found, (0, capacity - len(found))).int().cuda()


def test_tiles_go_by_what_a_layer_has() -> None:
    nothing: Any = {"newest": True, "biased": False, "windowed": False, "distant": False}
    for width, wanted in ((12, 32), (32, 32), (48, 64), (64, 64), (80, 128), (128, 128), (256, 128)):
        assert rungs(width, torch.float16, **nothing) == RUNGS[wanted]
    assert rungs(64, torch.float32, **nothing) == tiles.PLAIN
    assert rungs(64, torch.float16, **{**nothing, "newest": False}) == tiles.PLAIN
    assert rungs(64, torch.float16, **{**nothing, "biased": True}) == tiles.PLAIN
    assert rungs(64, torch.float16, **{**nothing, "biased": True, "windowed": True}) == tiles.WINDOWED
    assert rungs(64, torch.float16, **{**nothing, "windowed": True, "distant": True}) == tiles.DISTANT


@pytest.mark.parametrize(("room", "stages"), [(227, 3), (163, 2), (99, 1), (10, 1)])
def test_fewer_stages_where_shared_memory_is_small(room: int, stages: int) -> None:
    given = Tiles(128, 128, 8, 3)
    found = fitting(given, held=128, streamed=256, row=256, room=room * 1024)
    assert found == Tiles(128, 128, 8, stages)
