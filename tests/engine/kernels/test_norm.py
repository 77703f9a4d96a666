"""Residual and normalisation agree with the twin, for any width, and read only rows that are live."""

from typing import Any

import pytest
import torch

from tests.engine.kernels.cases import (
    DEVICES,
    HALVES,
    SPARE,
    assert_as_exact_as_plain_torch,
    doubled,
    numbers,
)
from thresher.engine.kernels.norm import add_norm, add_norm_reference


def check(live: int, width: int, dtype: torch.dtype, device: str, *, gathered: bool, parts: int = 0) -> None:
    rows = torch.full((live + SPARE,), 10**6, dtype=torch.int32)
    rows[:live] = torch.arange(2 * live - 1, -1, -2)
    values = numbers(live + SPARE, width, dtype=dtype, device=device, live=live) * 3 + 1
    if parts:
        values = torch.stack([values.float() / (part + 1) for part in range(parts)])
    given = (
        values,
        numbers(2 * live + SPARE, width, dtype=dtype, device=device, live=2 * live, seed=1),
        numbers(width, dtype=dtype, device=device, seed=2),
        numbers(width, dtype=dtype, device=device, seed=3),
    )
    count = torch.tensor([live], dtype=torch.int32, device=device)
    named: dict[str, Any] = {"epsilon": 1e-12, "count": count, "rows": rows.to(device) if gathered else None}
    if parts:
        named["offset"] = numbers(width, dtype=dtype, device=device, seed=4)
    found, plain = add_norm(*given, **named), add_norm_reference(*given, **named)
    assert found.dtype == dtype
    truth = add_norm_reference(*doubled(given), **doubled(named))
    assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("live", "width"), [(1, 16), (33, 72), (16, 768), (3, 1500)])
@pytest.mark.parametrize("gathered", [False, True])
def test_agrees_with_the_twin(live: int, width: int, gathered: bool, device: str) -> None:
    check(live, width, torch.float32, device, gathered=gathered)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype: torch.dtype, device: str) -> None:
    check(21, 96, dtype, device, gathered=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_and_an_offset(parts: int, dtype: torch.dtype, device: str) -> None:
    check(11, 40, dtype, device, gathered=True, parts=parts)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_big_batches(dtype: torch.dtype) -> None:
    check(12_801, 768, dtype, "cuda", gathered=True)


@pytest.mark.parametrize("device", DEVICES)
def test_all_rows_in_order(device: str) -> None:
    values = numbers(9, 24, dtype=torch.float32, device=device)
    ones, zeros = torch.ones(24, device=device), torch.zeros(24, device=device)
    found = add_norm(values, values, ones, zeros, epsilon=1e-5)
    torch.testing.assert_close(found, add_norm_reference(values, values, ones, zeros, epsilon=1e-5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("parts", [0, 3])
def test_sums_are_stored_too(parts: int, dtype: torch.dtype, device: str) -> None:
    """As pre-norm layers need them: live rows only, and the norm is what it is without."""
    live, width = 13, 48
    values = numbers(live + SPARE, width, dtype=dtype, device=device, live=live)
    if parts:
        values = torch.stack([values.float() / (part + 1) for part in range(parts)])
    residual = numbers(live + SPARE, width, dtype=dtype, device=device, live=live, seed=1)
    weight, bias = (numbers(width, dtype=torch.float32, device=device, seed=seed) for seed in (2, 3))
    count = torch.tensor([live], dtype=torch.int32, device=device)
    sums = torch.full_like(residual, 7.0)
    found = add_norm(values, residual, weight, bias, epsilon=1e-5, count=count, sums=sums)
    alone = add_norm(values, residual, weight, bias, epsilon=1e-5, count=count)
    assert torch.equal(found[:live], alone[:live]) and (sums[live:] == 7.0).all()
    together = values.double() if not parts else values.double().sum(dim=0)
    truth = (together + residual.double())[:live]
    assert_as_exact_as_plain_torch(sums[:live], truth.to(dtype), truth)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_without_a_residual(dtype: torch.dtype, device: str) -> None:
    live = 13
    values = numbers(live + SPARE, 48, dtype=dtype, device=device, live=live)
    weight, bias = (numbers(48, dtype=dtype, device=device, seed=seed) for seed in (2, 3))
    count = torch.tensor([live], dtype=torch.int32, device=device)
    given = (values, None, weight, bias)
    found, plain = (way(*given, epsilon=1e-5, count=count) for way in (add_norm, add_norm_reference))
    truth = add_norm_reference(*doubled(given), epsilon=1e-5, count=count)
    assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])
