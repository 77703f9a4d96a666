"""Attention in tiles on CPUs against plain softmax in float64: hostile lengths, tiles and logits."""

import math

import pytest
import torch
from torch import Tensor

from tests.engine import test_parity
from tests.engine.makers import cpu, engine_with
from tests.engine.test_engine import SCORES, sequences
from tests.models.families import FAMILIES, pruned_model, ragged
from thresher.engine.backends import attention
from thresher.engine.backends import cpu as cpu_module
from thresher.engine.backends.attention import LOG2_E, Tiles, attend_at_once, laid_out, tile_rows

HEADS, SIZE = 3, 8
LENGTHS = [1, 7, 16, 63, 65, 130, 1023]
ERRORS = {torch.float32: 1e-6, torch.bfloat16: 2**-6}  # the largest, of values around 1


def drawn(runs: int, length: int, *, spread: float = SIZE**-0.5) -> Tensor:
    """Queries, keys and values: (3, runs, heads, length, head width). Queries are `spread` wide, the others 1."""
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(3, runs, HEADS, length, SIZE, generator=generator)
    qkv[0] *= spread
    return qkv


def plainly(qkv: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Context (runs, heads, length, head width) and what keys receive (runs, heads, length), in float64."""
    query, key, value = qkv.double()
    logits = query @ key.transpose(2, 3)
    weights = torch.softmax(logits if bias is None else logits + bias, dim=-1)
    return weights @ value, weights.sum(dim=2)


def in_tiles(qkv: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    query, key, value = laid_out(torch.stack([(LOG2_E * qkv[0]).to(dtype), *qkv[1:].to(dtype)]), dtype)
    runs, _, length = qkv.shape[1:4]
    out = torch.empty(runs, length, HEADS, SIZE).transpose(1, 2)  # strided, as in a packed batch
    rows = None if bias is None else (lambda part: bias[:, :, part])
    received = Tiles().attend(query, key, value, keys=length, out=out, bias=rows, scored=True)
    assert received is not None
    return out, received.view(runs, HEADS, length)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_at_once(length: int, biased: bool) -> None:
    qkv = drawn(2, length)
    bias = torch.randn(2, HEADS, length, length, generator=torch.Generator().manual_seed(1)) if biased else None
    out = torch.empty(2, length, HEADS, SIZE).transpose(1, 2)
    rows = None if bias is None else (lambda part: bias[:, :, part])
    query, key, value = qkv.flatten(1, 2)
    received = attend_at_once(LOG2_E * query, key, value, out=out, bias=rows, scored=True)
    context, exact = plainly(qkv, bias)
    torch.testing.assert_close(out, context.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(received, exact.flatten(0, 1).float(), atol=1e-5, rtol=1e-5)


def check(qkv: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
    expected = plainly(qkv.to(dtype), bias)
    for found, exact in zip(in_tiles(qkv, dtype, bias), expected, strict=True):
        assert float((found - exact).abs().max()) <= ERRORS[dtype] * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("tile", [1, 5000, attention.TILE])
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int, dtype: torch.dtype, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to tiles of a few rows, with runs of idle tokens at their ends."""
    monkeypatch.setattr(attention, "TILE", tile)
    check(drawn(2, length), dtype)


@pytest.mark.parametrize("dtype", ERRORS)
def test_a_bias_is_that_of_the_tiles_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE", 2 * HEADS * 50 * 20)
    check(drawn(2, 50), dtype, torch.randn(2, HEADS, 50, 50, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("offset", [400.0, -400.0, 1e30, -1e30])
@pytest.mark.parametrize("dtype", ERRORS)
def test_powers_beyond_the_range_of_numbers(dtype: torch.dtype, offset: float) -> None:
    """All logits of a run far up or down: nothing changes, and nothing becomes infinite."""
    qkv = torch.zeros(3, 1, HEADS, 70, SIZE)
    qkv[2] = drawn(1, 70)[2]
    check(qkv, dtype, torch.full((1, HEADS, 70, 70), offset))


def test_logits_of_hundreds_in_some_rows() -> None:
    found, received = in_tiles(drawn(1, 90, spread=100.0), torch.float32)
    exact, exact_received = plainly(drawn(1, 90, spread=100.0))
    assert float((found - exact).abs().max()) < 1e-3  # float32's error of such logits
    torch.testing.assert_close(received.double(), exact_received, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("dtype", ERRORS)
def test_ties(dtype: torch.dtype) -> None:
    """Keys that are equal receive the same, to the last bit."""
    qkv = drawn(1, 80)
    qkv[1] = qkv[1, :, :, :1]
    _, received = in_tiles(qkv, dtype)
    assert torch.equal(received, received[..., :1].expand_as(received))


def test_tiles_cover_every_row_once() -> None:
    for queries in (1, 16, 17, 400, 1023):
        for keys in (1, 400, 100_000):
            covered = [row for rows in tile_rows(12, queries, keys=keys) for row in range(queries)[rows]]
            assert covered == list(range(queries))
            most = max(rows.stop - rows.start for rows in tile_rows(12, queries, keys=keys))
            assert most <= max(attention.STEP, math.ceil(attention.TILE / (12 * keys)) + attention.STEP)


@pytest.fixture
def all_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every run were long, on a processor with bf16."""
    monkeypatch.setattr(cpu_module, "LONG", 1)
    monkeypatch.setattr(cpu_module, "native_bf16_on_cpu", lambda: True)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_tiles_in_fp32_keep_the_parity_rules(name: str, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "LONG", 1)
    test_parity.test_values(name, "fp32", score)
    test_parity.test_decisions(name, "cpu", "fp32", score)


@pytest.mark.usefixtures("all_in_bf16")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_layers_in_bf16_keep_the_parity_rules(name: str, score: str) -> None:
    test_parity.test_values(name, "bf16", score)
    for dtype in ("bf16", "int8"):
        test_parity.test_decisions(name, "cpu", dtype, score)


@pytest.mark.usefixtures("all_in_bf16")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_in_bf16_a_text_is_decided_alone_as_in_a_batch(name: str, score: str) -> None:
    model = pruned_model(name, score=score)
    inputs = sequences(ragged(model, (11, 1, 7, 3, 16, 23, 40, 9)))
    engine = engine_with(model, cpu("bf16"))
    together = engine.compute(inputs)
    assert [engine.compute([ids]).kept[0].tolist() for ids in inputs] == together.kept.tolist()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_without_hardware_for_it_attention_is_never_in_bf16(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model("bert")
    engines = {}
    for native in (False, True):
        monkeypatch.setattr(cpu_module, "native_bf16_on_cpu", lambda native=native: native)
        engines[native] = engine_with(model, cpu(dtype)).backend
    assert engines[False].long_dtype == torch.float32
    assert engines[True].long_dtype == (torch.float32 if dtype == "fp32" else torch.bfloat16)
