"""Triton where it is installed; elsewhere stand-ins, so that the twins can be used and a launch says what is missing.

CPU wheels of torch come without Triton. `TRITON_INTERPRET=1`, set before this module is imported, runs the kernels on
the CPU in Python: slow, but enough to test them.
"""
# mypy: disable-error-code="no-untyped-def"

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thresher.errors import ConfigError

try:
    import triton
    import triton.language as tl
except ImportError:

    class _Missing:
        """What it takes to read the kernels' definitions; everything else is a use, and says what to do."""

        constexpr = staticmethod(lambda value: value)

        def jit(self, function: Any, **named: Any) -> Any:
            return self

        def __getitem__(self, grid: Any) -> Any:
            raise ConfigError("the GPU kernels need Triton, which is not installed; pip install triton, or use the CPU")

    triton = tl = _Missing()
    RUNS_INTERPRETED = False
else:
    RUNS_INTERPRETED = bool(triton.knobs.runtime.interpret)

__all__ = [
    "INTERPRETED",
    "RUNS_INTERPRETED",
    "begin",
    "blocks",
    "capability",
    "descriptor",
    "dot",
    "fetch",
    "jit",
    "launching",
    "live",
    "live_rows",
    "power_of_two",
    "processors",
    "quotient",
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


def launching(tensor: Tensor, **options: Any) -> dict[str, Any]:
    """Options of a launch on the tensor's device. From compute capability 9 on kernels may start before the one in
    front has ended, see `begin`; elsewhere they are launched one after the other.
    """
    early = not RUNS_INTERPRETED and capability(tensor.device) >= (9, 0)
    return {**options, "EARLY": early, **({"launch_pdl": True} if early else {})}


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter gets a few."""
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def descriptor(matrix: Tensor, tile: tuple[int, ...]) -> Any:
    """A matrix as a grid of tiles, for kernels that load them whole; what is outside reads as zero."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, list(tile))


@jit
def begin(EARLY: tl.constexpr):
    """Let the next kernel be set up while this one runs; then wait until the one in front has stored its results.

    Every kernel calls this before it reads anything that another has written.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@jit
def dot(left, right, sums):
    """sums + left @ right. Half precision is multiplied exactly and added up in float32; float32 never becomes TF32.

    Of e4m3 products, tensor cores of compute capability 9.0 add up fewer bits than float32 has. That moves a result by
    5e-4 of its size (768 inputs) or 1e-3 (3,072), where rounding its factors to e4m3 moves it by some 4e-2; to add such
    sums to float32 ones after every 128 inputs took 10% to 38% longer (benchmarks/gpu/NOTES.md)."""
    if INTERPRETED:  # its matrix product reads bfloat16 as integers
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision="ieee")


@jit
def quotient(left, right):
    """A division within two units in the last place; the usual one takes four times as many instructions."""
    if INTERPRETED:
        result = left / right
    else:
        result = tl.extra.cuda.libdevice.fast_dividef(left, right)
    return result


@jit
def fetch(pointers):
    """Have the cache lines of these numbers brought to the L2 cache, without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


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
