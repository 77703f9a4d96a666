"""Matrix products with the row count on the device agree with the twin, and read only rows that are live."""

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
from thresher.engine.kernels import linear as module
from thresher.engine.kernels.linear import (
    ACTIVATIONS,
    linear,
    linear_in_parts,
    linear_in_parts_reference,
    linear_reference,
)


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
    if named.pop("with_residual", False):
        named["residual"] = numbers(source, wide, dtype=dtype, device=device, seed=3)
    return (values, weight, bias), named


def check(live: int, dtype: torch.dtype, device: str, **more: Any) -> None:
    given, named = inputs(live, dtype, device, **more)
    found, plain = linear(*given, **named), linear_reference(*given, **named)
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
def test_activation_gather_and_residual(gathered: bool, activation: str, dtype: torch.dtype, device: str) -> None:
    check(45, dtype, device, gathered=gathered, activation=activation, with_residual=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("wide", "deep"), [(1, 16), (32, 32), (33, 31), (300, 64)])
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
@pytest.mark.parametrize("tile", module.TILES, ids=str)
def test_every_tile(tile: tuple[int, int, int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._linear, "configs", module.configurations([tile]))
    for live in (1, 52, 1301):
        check(live, dtype, "cuda", wide=3072, deep=768, activation="gelu", with_residual=True)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("wide", "deep"), [(2304, 768), (768, 3072)])
def test_the_measured_choice(wide: int, deep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._linear, "configs", module.configurations(module.TILES))
    for live in (52, 6401):
        check(live, torch.float16, "cuda", wide=wide, deep=deep, with_residual=True)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="width 3 do not fit a matrix of 2 inputs"):
        linear(torch.ones(1, 3), torch.eye(2))
    with pytest.raises(ValueError, match=r"weight \(3, 2\) with strides \(1, 3\) must be contiguous"):
        linear(torch.ones(1, 2), torch.ones(2, 3).t())
    with pytest.raises(ValueError, match="'swish' is not one of none, gelu, gelu_tanh"):
        linear(torch.eye(2), torch.eye(2), activation="swish")
