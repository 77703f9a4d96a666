"""What kernels round to e4m3 is what torch rounds, and products of it are its twin's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import DEVICES, SPARE, numbers, starts
from thresher.engine.eight import EIGHT, MOST, eight_weight, rounded
from thresher.engine.kernels.attention import attention, attention_reference
from thresher.engine.kernels.eight import in_eight, in_eight_reference
from thresher.engine.kernels.ends import ACTIVATIONS
from thresher.engine.kernels.first import attend_first, attend_first_reference
from thresher.engine.kernels.gate import gated, gated_reference
from thresher.engine.kernels.linear import linear, linear_in_parts, linear_in_parts_reference, linear_reference
from thresher.engine.kernels.norm import add_norm, add_norm_reference
from thresher.engine.kernels.plans import EIGHT_TILES, Tile, plan


def units(width: int, device: str) -> Tensor:
    return numbers(width, dtype=torch.float32, device=device, seed=9).abs() * 20 + 1


def assert_rounded_alike(found: Tensor, expected: Tensor, *, by: Tensor | None = None) -> None:
    """The same numbers in e4m3, but where what was rounded lay so near the middle that the last bits of a sum decide.
    Tensor cores keep fewer of them than float32 does. by: the units of sums that may be 2e-3 apart there."""
    assert found.dtype == expected.dtype == EIGHT
    ours, theirs = found.double(), expected.double()
    apart, on_gpu = ours != theirs, found.is_cuda
    assert float(apart.double().mean()) < (0.03 if on_gpu else 0.01)
    beside = 2e-3 * float(by.max()) if on_gpu and by is not None else 0.0
    torch.testing.assert_close(ours[apart], theirs[apart], rtol=0.13, atol=2**-9 + beside)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_size_of_number_is_rounded_as_torch_does(dtype: torch.dtype, device: str) -> None:
    """From what e4m3 has no steps for to what is too large for it, and exactly between two steps."""
    steps = torch.arange(127, dtype=torch.uint8).view(EIGHT).float()
    between = (steps[1:] + steps[:-1]) / 2
    sizes = torch.cat([steps, between, torch.logspace(-5, 4, 600), torch.tensor([449.0, 464.0, 480.0, 6e4])])
    values = torch.cat([sizes, -sizes]).to(device, dtype)[:, None].repeat(1, 3).contiguous()
    ones = torch.ones(3, device=device)
    found = in_eight(values, ones)
    assert torch.equal(found.float(), in_eight_reference(values, ones).float())
    assert float(found.float().max()) == MOST == -float(found.float().min())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("live", "width"), [(1, 16), (33, 72), (3, 1500)])
def test_live_rows_of_any_width_agree_with_the_twin(live: int, width: int, device: str) -> None:
    values = numbers(live + SPARE, width, dtype=torch.float16, device=device, live=live)
    count = torch.tensor([live], dtype=torch.int32, device=device)
    found = in_eight(values, units(width, device), count=count)
    assert torch.equal(
        found[:live].float(), in_eight_reference(values, units(width, device), count=count)[:live].float()
    )


def given_for_products(live: int, wide: int, deep: int, device: str) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Rounded values with rows that must not be read, every second one gathered, and a rounded matrix."""
    values = numbers(2 * live + SPARE, deep, dtype=torch.float32, device=device)
    weight, worth = eight_weight(
        numbers(wide, deep, dtype=torch.float32, device=device, seed=1) / deep**0.5, torch.tensor(0.05, device=device)
    )
    eight = rounded(values, torch.full((deep,), 20.0, device=device)).to(EIGHT)
    eight[2 * live :] = float("nan")
    bias = numbers(wide, dtype=torch.float16, device=device, seed=2)
    named = {"worth": worth, "count": torch.tensor([live], dtype=torch.int32, device=device)}
    rows = torch.full((live + SPARE,), 10**6, dtype=torch.int32)
    rows[:live] = torch.arange(2 * live - 1, -1, -2)
    return (eight, weight, bias), {**named, "rows": rows.to(device)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gathered", [False, True])
def test_products_agree_with_the_twin(gathered: bool, activation: str, device: str) -> None:
    given, named = given_for_products(45, 40, 272, device)
    named = named if gathered else {**named, "rows": None}
    found, expected = (way(*given, **named, activation=activation) for way in (linear, linear_reference))
    assert found.dtype == expected.dtype == torch.float16
    torch.testing.assert_close(found[:45], expected[:45], atol=2e-3, rtol=2e-3)
    wide = units(40, device)
    found, expected = (way(*given, **named, activation=activation, units=wide) for way in (linear, linear_reference))
    assert_rounded_alike(found[:45], expected[:45], by=wide)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("parts", "deep"), [(1, 48), (2, 256), (3, 272)])
def test_parts_add_up(parts: int, deep: int, device: str) -> None:
    (values, weight, _), named = given_for_products(37, 24, deep, device)
    found = linear_in_parts(values, weight, parts=parts, **named)
    expected = linear_in_parts_reference(values, weight, parts=parts, **named)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(dim=0)[:37], expected.sum(dim=0)[:37], atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", EIGHT_TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile_and_how_exact_its_sums_are(tile: Tile) -> None:
    """Of 3,072 products; see `dot`. Half precision alone is 2.4e-4 away."""
    for live in (1, 52, 1301):
        for gathered in (False, True):
            (values, weight, bias), named = given_for_products(live, 768, 3072, "cuda")
            named = named if gathered else {**named, "rows": None}
            found = linear(values, weight, bias.zero_(), tile=tile, **named)[:live].double()
            chosen = values[named["rows"][:live]] if gathered else values[:live]
            truth = chosen.double() @ (weight.double() * named["worth"].double()[:, None]).t()
            assert float((found - truth).norm() / truth.norm()) < 2e-3


def test_eight_bits_have_tiles_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.engine.kernels.plans.processors", lambda device: 132)
    weight = torch.empty(768, 3072, dtype=EIGHT)
    for rows in (52, 2048, 26624):
        tile, parts = plan(rows, weight, divisible=True)
        assert tile in EIGHT_TILES and parts * tile.depth <= 3072
        assert parts == 1 or tile != EIGHT_TILES[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", [0, 3])
def test_a_norm_is_rounded_beside_its_result_as_by_the_twin(parts: int, device: str) -> None:
    live, width = 13, 48
    values = numbers(live + SPARE, width, dtype=torch.float16, device=device, live=live)
    if parts:
        values = torch.stack([values.float() / (part + 1) for part in range(parts)])
    residual = numbers(live + SPARE, width, dtype=torch.float16, device=device, live=live, seed=1)
    weight, bias = (numbers(width, dtype=torch.float32, device=device, seed=seed) for seed in (2, 3))
    count = torch.tensor([live], dtype=torch.int32, device=device)
    named: dict[str, Any] = {"epsilon": 1e-5, "count": count, "units": units(width, device)}
    eight, expected = (torch.zeros(live + SPARE, width, device=device).to(EIGHT) for _ in range(2))
    found = add_norm(values, residual, weight, bias, eight=eight, **named)
    alone = add_norm(values, residual, weight, bias, epsilon=1e-5, count=count)
    assert torch.equal(found[:live], alone[:live]) and not eight[live:].float().any()
    exact = (values.float(), residual.float(), weight, bias)
    add_norm_reference(*exact, eight=expected, **named)
    assert_rounded_alike(eight[:live], expected[:live])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [[40, 1, 130], [300, 5]], ids=str)
def test_attention_rounds_its_context_as_the_twin_does(lengths: list[int], device: str) -> None:
    qkv = numbers(sum(lengths), 3 * 32, dtype=torch.float16, device=device)
    named: dict[str, Any] = {"heads": 2, "max_length": max(lengths), "score": "value", "units": units(32, device)}
    cu_seqlens = starts(lengths, device)
    found, received = attention(qkv, cu_seqlens, **named)
    expected, _ = attention_reference(qkv.float(), cu_seqlens, **named)
    assert_near(found, expected)
    assert torch.equal(received, attention(qkv, cu_seqlens, **{**named, "units": None})[1])  # type: ignore[arg-type]

    first = cu_seqlens[:-1].long()
    query, key_value = qkv[first][:, :32].contiguous(), qkv[:, 32:].contiguous()
    of_first = attend_first(query, key_value, cu_seqlens, heads=2, units=named["units"])
    assert_near(
        of_first, attend_first_reference(query.float(), key_value.float(), cu_seqlens, heads=2, units=named["units"])
    )


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Rounded from half precision and from float32: they may lie on two sides of a middle."""
    assert found.dtype == expected.dtype == EIGHT
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.13, atol=0.01)
    assert float((found.float() != expected.float()).float().mean()) < 0.05


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_a_gated_state_is_rounded_as_by_the_twin(activation: str, device: str) -> None:
    live, width = 21, 40
    values = numbers(live + SPARE, 2 * width, dtype=torch.float16, device=device, live=live)
    count = torch.tensor([live], dtype=torch.int32, device=device)
    found = gated(values, activation=activation, count=count, units=units(width, device))
    expected = gated_reference(values.float(), activation=activation, count=count, units=units(width, device))
    assert_near(found[:live], expected[:live])
