"""Hostile batches, devices, and the parity rule that every kernel's test shares."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from thresher.engine.kernels.toolchain import RUNS_INTERPRETED

INTERPRETER = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the CUDA device")
)
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [INTERPRETER, GPU]
HALVES = [torch.float16, torch.bfloat16]
SCORES = ["attention", "value"]

# Run lengths. A tile holds 32, 64, 128 or 256 keys; longer runs take two passes.
BATCHES: dict[str, list[int]] = {
    "one token": [1],
    "full tiles": [16, 64, 128, 256],
    "one past a tile": [17, 65, 129, 257],
    "mixed": [3, 1, 130, 40, 100],
    "an empty run": [5, 0, 33, 0],
    "many of one token": [1] * 21,
    "several blocks": [300, 2],
}
BIG_BATCHES: dict[str, list[int]] = {
    "4096 tokens": [4096, 1, 513, 128, 1023, 7, 3],
    "like QNLI": [20 + 37 * i % 95 for i in range(256)],
    "many short": [1 + i % 5 for i in range(4100)],
}
SPARE = 7  # rows beyond the live ones, full of what must not be read


def starts(lengths: Sequence[int], device: str) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def numbers(*shape: int, dtype: torch.dtype, device: str, live: int | None = None, seed: int = 0) -> Tensor:
    """Normal numbers, the same on every device; rows from `live` on are not a number."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
    if live is not None:
        values[live:] = float("nan")
    return values


def doubled(arguments: Any) -> Any:
    """The same arguments in float64, for the truth."""
    if isinstance(arguments, dict):
        return {name: doubled(value) for name, value in arguments.items()}
    if isinstance(arguments, tuple):
        return tuple(doubled(value) for value in arguments)
    return arguments.double() if isinstance(arguments, Tensor) and arguments.is_floating_point() else arguments


def assert_as_exact_as_plain_torch(found: Tensor, plain: Tensor, truth: Tensor) -> None:
    """In half precision: at most twice the error of plain torch in the same dtype. In float32: nothing but rounding."""
    if found.dtype == torch.float32:
        torch.testing.assert_close(found.double(), truth, atol=1e-5, rtol=1e-5)
        return
    # The interpreter cuts float32 down to bfloat16 where a GPU rounds, which doubles the error again.
    factor = 4 if RUNS_INTERPRETED and found.dtype == torch.bfloat16 else 2
    error, allowed = (float((each.double() - truth).abs().max()) for each in (found, plain))
    assert error <= factor * allowed + 1e-5, f"error {error:.3g}, plain torch {allowed:.3g}"
