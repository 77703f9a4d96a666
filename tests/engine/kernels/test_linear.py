"""Matrix products with the row count on the device agree with the twin, and read only rows that are live."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import (
    DEVICES,
    HALVES,
    SPARE,
    assert_as_exact_as_plain_torch,
    doubled,
    numbers,
)
from thresher.engine.kernels import ends
from thresher.engine.kernels import plans as module
from thresher.engine.kernels.ends import ACTIVATIONS
from thresher.engine.kernels.linear import linear, linear_in_parts, linear_in_parts_reference, linear_reference
from thresher.engine.kernels.plans import Tile


def inputs(
    live: int, dtype: torch.dtype, device: str, *, wide: int = 40, deep: int = 72, gathered: bool = True, **more: Any
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """Every second row is gathered, last first; what lies past the live rows and their indices must not be read."""
    source = 2 * live + SPARE
    values = numbers(source, deep, dtype=dtype, device=device, live=source - SPARE)
    weight = numbers(wide, deep, dtype=dtype, device=device, seed=1) / deep**0.5
    bias = numbers(wide, dtype=dtype, device=device, seed=2)
    named = {"count": torch.tensor([live], dtype=torch.int32, device=device), **more}
    if gathered:
        rows = torch.full((live + SPARE,), 10**6, dtype=torch.int32)
        rows[:live] = torch.arange(2 * live - 1, -1, -2)
        named["rows"] = rows.to(device)
    return (values, weight, bias), named


def check(live: int, dtype: torch.dtype, device: str, **more: Any) -> None:
    tile = more.pop("tile", None)
    given, named = inputs(live, dtype, device, **more)
    found, plain = linear(*given, **named, tile=tile), linear_reference(*given, **named)
    truth = linear_reference(*doubled(given), **doubled(named))
    assert found.shape == plain.shape and found.dtype == dtype
    if live:
        assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("live", [0, 1, 16, 33, 64, 129])
def test_agrees_with_the_twin(live: int, device: str) -> None:
    check(live, torch.float32, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gathered", [False, True])
def test_activation_and_gather(gathered: bool, activation: str, dtype: torch.dtype, device: str) -> None:
    check(45, dtype, device, gathered=gathered, activation=activation)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("wide", "deep"), [(1, 16), (32, 32), (33, 36), (300, 64)])
def test_awkward_matrices(wide: int, deep: int, device: str) -> None:
    check(20, torch.float32, device, wide=wide, deep=deep)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(("parts", "deep"), [(1, 40), (2, 128), (3, 72), (4, 40)])
def test_parts_add_up(parts: int, deep: int, dtype: torch.dtype, device: str) -> None:
    """Also where a part has nothing left to do."""
    (values, weight, _), named = inputs(37, dtype, device, deep=deep)
    found = linear_in_parts(values, weight, parts=parts, **named)
    expected = linear_in_parts_reference(values, weight, parts=parts, **named)
    assert found.shape == expected.shape and found.dtype == torch.float32
    torch.testing.assert_close(found.sum(dim=0)[:37], expected.sum(dim=0)[:37], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_all_rows_and_no_bias(device: str) -> None:
    values = numbers(19, 24, dtype=torch.float32, device=device)
    weight = numbers(8, 24, dtype=torch.float32, device=device, seed=1)
    torch.testing.assert_close(linear(values, weight), values @ weight.t(), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tile", module.TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile(tile: Tile, dtype: torch.dtype) -> None:
    for live in (1, 52, 1301):
        for gathered in (False, True):
            check(live, dtype, "cuda", wide=3072, deep=768, activation="gelu", tile=tile, gathered=gathered)


def test_the_fitted_gelu() -> None:
    """As close to the exact one as its description says, also far out."""
    x = torch.cat([torch.linspace(-12, 12, 4801), torch.tensor([-1e4, -60.0, 60.0, 1e4])]).double()
    power = torch.zeros_like(x)
    for coefficient in (-3.2106336e-06, 8.7913970e-05, 3.6202816e-04, -1.0522995e-01, -2.3020438):
        power = power * x * x + coefficient
    fitted = x / (1 + torch.exp2(x * power))
    assert float((fitted - torch.nn.functional.gelu(x)).abs().max()) < 3.1e-6
    source = inspect.getsource(ends.gelu.fn)
    assert "3.2106336e-06" in source and "8.7913970e-05" in source and "3.6202816e-04" in source


@pytest.mark.parametrize(
    ("rows", "shape", "parts"),
    [(13312, (768, 3072), 1), (1200, (768, 3072), 2), (52, (768, 3072), 8), (52, (768, 768), 4)],
)
def test_parts_fill_the_gpu_when_rows_are_few(
    rows: int, shape: tuple[int, int], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "processors", lambda device: 132)
    weight = torch.empty(shape, dtype=torch.float16)
    tile, found = module.plan(rows, weight, divisible=True)
    assert found == parts and parts * tile.depth <= shape[1]
    assert module.plan(rows, weight)[1] == 1
    assert tile.rows == 64 if rows < 64 else True


def test_many_rows_get_the_biggest_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processors", lambda device: 132)
    assert module.plan(13312, torch.empty(2304, 768, dtype=torch.float16)) == (module.TILES[0], 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="width 3 do not fit a matrix of 2 inputs"):
        linear(torch.ones(1, 3), torch.eye(2))
    with pytest.raises(ValueError, match="31 inputs has rows that are not a multiple of 16 bytes"):
        linear(torch.ones(1, 31), torch.ones(2, 31))
    with pytest.raises(ValueError, match=r"weight \(3, 4\) with strides \(1, 3\) must be contiguous"):
        linear(torch.ones(1, 4), torch.ones(4, 3).t())
    with pytest.raises(ValueError, match="'swish' is not one of none, gelu, gelu_tanh"):
        linear(torch.eye(2), torch.eye(2), activation="swish")
