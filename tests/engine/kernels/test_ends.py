"""Gates and turns in the end of the product that makes them agree with the twin, and with the passes of their own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import DEVICES, HALVES, SPARE, assert_as_exact_as_plain_torch, doubled, numbers
from tests.engine.kernels.test_eight import assert_rounded_alike, units
from thresher.core.places import turns as tables_of
from thresher.engine.eight import EIGHT, eight_weight, rounded
from thresher.engine.kernels.gate import ACTIVATIONS, gated
from thresher.engine.kernels.linear import linear, linear_reference
from thresher.engine.kernels.plans import EIGHT_TILES, TILES, Tile, holds
from thresher.engine.kernels.rotary import Turns, rotate_

DTYPES = [torch.float32, *HALVES]


def inputs(
    live: int, dtype: torch.dtype, device: str, *, wide: int, deep: int = 72, gathered: bool = False, bias: bool = True
) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
    """Every second row where rows are gathered, last first; what lies past the live rows must not be read."""
    source = 2 * live + SPARE
    values = numbers(source, deep, dtype=dtype, device=device, live=source - SPARE)
    weight = numbers(wide, deep, dtype=dtype, device=device, seed=1) / deep**0.5
    named: dict[str, Any] = {"count": torch.tensor([live], dtype=torch.int32, device=device)}
    if gathered:
        rows = torch.full((live + SPARE,), 10**6, dtype=torch.int32)
        rows[:live] = torch.arange(2 * live - 1, -1, -2)
        named["rows"] = rows.to(device)
    return (values, weight, numbers(wide, dtype=dtype, device=device, seed=2) if bias else None), named


def turning(capacity: int, live: int, head: int, columns: int, device: str) -> Turns:
    """Positions with gaps; those of rows that are not there lie in no table."""
    positions = torch.full((capacity,), 10**6, dtype=torch.int32)
    positions[:live] = torch.arange(live).mul(3).int()
    made = tables_of(torch.arange(3 * live + 1), base=1000.0, width=head)
    cosines, sines = (table[:, : head // 2].contiguous().to(device) for table in made)
    return Turns(positions.to(device), cosines, sines, columns)


def check(given: tuple[Tensor | None, ...], live: int, *, tile: Tile | None = None, **named: Any) -> Tensor:
    values, weight, bias = given
    assert values is not None and weight is not None
    found = linear(values, weight, bias, **named, tile=tile)
    plain = linear_reference(values, weight, bias, **named)
    exact = {**named, "turns": Turns(*doubled(tuple(named["turns"])))} if "turns" in named else named
    truth = linear_reference(*doubled(given), **exact)
    assert found.shape == plain.shape and found.dtype == values.dtype
    if live:
        assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gathered", [False, True])
def test_a_gate_agrees_with_the_twin(gathered: bool, activation: str, dtype: torch.dtype, device: str) -> None:
    given, named = inputs(45, dtype, device, wide=80, gathered=gathered)
    check(given, 45, gated=True, activation=activation, **named)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("live", [0, 1, 33, 64, 129])
@pytest.mark.parametrize("width", [1, 32, 33, 150])
def test_a_gate_of_any_size(width: int, live: int, bias: bool, device: str) -> None:
    given, named = inputs(live, torch.float32, device, wide=2 * width, bias=bias)
    found = check(given, live, gated=True, activation="silu", **named)
    assert found.shape[1] == width


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(("head", "heads", "parts"), [(16, 3, 3), (16, 5, 2), (64, 1, 3)])
def test_turns_agree_with_the_twin(
    head: int, heads: int, parts: int, gathered: bool, dtype: torch.dtype, device: str
) -> None:
    """Also where the last columns that are turned end inside a tile."""
    live, width = 45, head * heads
    given, named = inputs(live, dtype, device, wide=parts * width, gathered=gathered)
    capacity = live + SPARE if gathered else 2 * live + SPARE
    turns = turning(capacity, live, head, (parts - 1) * width, device)
    tile = None if dtype == torch.float32 else TILES[-2]
    found = check(given, live, turns=turns, tile=tile, **named)
    plain = linear(*given, **named, tile=tile)  # type: ignore[arg-type]
    assert torch.equal(found[:live, turns.columns :], plain[:live, turns.columns :]), "values stay"
    assert not torch.equal(found[1, : turns.columns], plain[1, : turns.columns])


@pytest.mark.parametrize("device", DEVICES)
def test_ends_give_what_passes_of_their_own_give(device: str) -> None:
    """In float32, where nothing is rounded between the two."""
    given, named = inputs(37, torch.float32, device, wide=96)
    apart = linear(*given, **named)  # type: ignore[arg-type]
    count = named["count"]
    together = linear(*given, gated=True, activation="gelu", **named)  # type: ignore[arg-type]
    expected = gated(apart, activation="gelu", count=count)
    torch.testing.assert_close(together[:37], expected[:37], atol=1e-6, rtol=1e-6)
    turns = turning(len(apart), 37, 16, 64, device)
    together = linear(*given, turns=turns, **named)  # type: ignore[arg-type]
    rotate_(apart, turns, count=count)
    torch.testing.assert_close(together[:37], apart[:37], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gathered", [False, True])
def test_both_in_eight_bits(gathered: bool, device: str) -> None:
    live, wide, deep = 45, 96, 272
    (values, weight, bias), named = inputs(live, torch.float32, device, wide=wide, deep=deep, gathered=gathered)
    assert values is not None and weight is not None and bias is not None
    eight, worth = eight_weight(weight, torch.tensor(0.05, device=device))
    values = rounded(values, torch.full((deep,), 20.0, device=device)).to(EIGHT)
    given, named = (values, eight, bias.half()), {**named, "worth": worth}
    capacity = live + SPARE if gathered else 2 * live + SPARE
    ends: list[dict[str, Any]] = [
        {"gated": True, "activation": "silu"},
        {"turns": turning(capacity, live, 16, 64, device)},
    ]
    for end in ends:
        found, expected = (way(*given, **named, **end) for way in (linear, linear_reference))
        assert found.dtype == expected.dtype == torch.float16
        torch.testing.assert_close(found[:live], expected[:live], atol=2e-3, rtol=2e-3)
    by = units(wide // 2, device)
    found, expected = (way(*given, **named, **ends[0], units=by) for way in (linear, linear_reference))
    assert_rounded_alike(found[:live], expected[:live], by=by)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile(tile: Tile) -> None:
    for live in (1, 52, 1301):
        for gathered in (False, True):
            given, named = inputs(live, torch.float16, "cuda", wide=2304, deep=768, gathered=gathered)
            check(given, live, gated=True, activation="gelu", tile=tile, **named)
            if tile.columns % 64 == 0:
                turns = turning(2 * live + SPARE, live, 64, 1536, "cuda")
                check(given, live, turns=turns, tile=tile, **named)


def test_heads_that_fit_no_tile_are_refused() -> None:
    weight = torch.eye(48)
    assert not holds(weight, 48) and holds(weight, 64) and not holds(weight, 128)
    assert holds(weight.half(), 128) and not holds(weight.half(), 256) and not holds(weight.half(), 96)
    assert all(tile.columns % 2 == 0 for tile in (*TILES, *EIGHT_TILES))
    with pytest.raises(ValueError, match="no tile holds whole heads of 48 columns; turn them by rotate_"):
        linear(torch.eye(48), weight, turns=turning(48, 48, 48, 48, "cpu"))
