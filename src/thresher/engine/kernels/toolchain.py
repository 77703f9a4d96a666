"""Triton where it is installed; elsewhere stand-ins, so that the twins can be used and a launch says what is missing.

CPU wheels of torch come without Triton. `TRITON_INTERPRET=1`, set before this module is imported, runs the kernels on
the CPU in Python: slow, but enough to test them.
"""
# mypy: disable-error-code="no-untyped-def"

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from thresher.errors import ConfigError

try:
    import triton
    import triton.language as tl
except ImportError:

    class _Missing:
        """What it takes to read the kernels' definitions; everything else is a use, and says what to do."""

        constexpr = staticmethod(lambda value: value)
        Config = staticmethod(lambda *arguments, **named: None)

        def jit(self, function: Any, **named: Any) -> Any:
            return self

        def autotune(self, **named: Any) -> Callable[[Any], Any]:
            return lambda kernel: kernel

        def __getitem__(self, grid: Any) -> Any:
            raise ConfigError("the GPU kernels need Triton, which is not installed; pip install triton, or use the CPU")

    triton = tl = _Missing()
    RUNS_INTERPRETED = False
else:
    RUNS_INTERPRETED = bool(triton.knobs.runtime.interpret)

__all__ = [
    "RUNS_INTERPRETED",
    "autotuned",
    "blocks",
    "dot",
    "jit",
    "live",
    "live_rows",
    "power_of_two",
    "require_contiguous",
    "tl",
    "triton",
    "with_capacity",
]

INTERPRETED = tl.constexpr(RUNS_INTERPRETED)


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit` with a type for the type checker, and one compilation for all capacities and places of the count."""
    names = inspect.signature(function).parameters
    return triton.jit(
        function,
        do_not_specialize=[name for name in ("capacity",) if name in names],
        do_not_specialize_on_alignment=[name for name in ("count",) if name in names],
    )


def autotuned(**named: Any) -> Callable[[Any], Any]:
    """`triton.autotune` with a type."""
    decorate: Callable[[Any], Any] = triton.autotune(**named)
    return decorate


@jit
def dot(left, right, sums):
    """sums + left @ right. Half precision is multiplied exactly and added up in float32; float32 never becomes TF32."""
    if INTERPRETED:  # its matrix product reads bfloat16 as integers
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision="ieee")


@jit
def live_rows(count, capacity):
    """How many rows to compute: read from the device, or all there is room for."""
    if count is not None:
        rows = tl.load(count)
    else:
        rows = capacity
    return rows


def power_of_two(number: int, *, least: int = 1) -> int:
    """The smallest power of two that holds `number`, and is at least `least`."""
    return max(least, 1 << (number - 1).bit_length())


def blocks(number: int, size: int) -> int:
    """How many blocks of `size` cover `number`."""
    return -(-number // size)


def require_contiguous(**tensors: Tensor | None) -> None:
    """The kernels find a row by its number and width, so a view with other strides would be read wrongly."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            shape, stride = tuple(tensor.shape), tensor.stride()
            raise ValueError(f"{name} {shape} with strides {stride} must be contiguous; call .contiguous() on it")


def live(tensor: Tensor, count: Tensor | None) -> Tensor:
    """The live rows, for the twins: this reads the count from the device."""
    return tensor if count is None else tensor[: int(count)]


def with_capacity(tensor: Tensor, capacity: int) -> Tensor:
    """Zeros below the live rows, for the twins: kernels leave such rows as they find them."""
    padded = tensor.new_zeros(capacity, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return padded
