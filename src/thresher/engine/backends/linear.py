"""Matrix products on CPUs in several arithmetics, with one signature: called with (rows, in), giving (rows, out)."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.weights import Affine
from thresher.errors import ConfigError

ZERO = 128  # the byte that stands for 0: fast products take unsigned activations, so symmetric int8 is shifted by this


class Linear(Protocol):
    """A converted matrix."""

    def __init__(self, affine: Affine) -> None: ...

    def __call__(self, values: Tensor) -> Tensor: ...


class Float32:
    def __init__(self, affine: Affine) -> None:
        self.weight, self.bias = affine.weight.float(), affine.bias.float()

    def __call__(self, values: Tensor) -> Tensor:
        return F.linear(values, self.weight, self.bias)


class BFloat16:
    def __init__(self, affine: Affine) -> None:
        self.weight, self.bias = affine.weight.bfloat16(), affine.bias.bfloat16()

    def __call__(self, values: Tensor) -> Tensor:
        return F.linear(values, self.weight, self.bias)


class Int8Matrix:
    """Symmetric int8 weights, one scale per output channel, and their product with quantized activations."""

    def __init__(self, affine: Affine) -> None:
        weight = affine.weight.float()
        self.scale = weight.abs().amax(dim=1).clamp(min=1e-12).div(127)  # (out,)
        rounded = torch.round(weight / self.scale[:, None]).clamp(-127, 127).to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zeros = torch.zeros(len(rounded), dtype=torch.int32)

    def product(
        self,
        bytes_in: Tensor,
        scale: float,
        bias: Tensor | None,
        *,
        zero: int = ZERO,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Of uint8 activations (rows, in) that stand for (byte - zero) x scale; summed in int32, given in `dtype`."""
        return self._call(bytes_in, scale, zero, bias, 1.0, 0, dtype, "none")

    def gelu_product(self, bytes_in: Tensor, scale: float, bias: Tensor, *, out_scale: float, out_zero: int) -> Tensor:
        """uint8 of GELU(product), quantized in the same pass."""
        return self._call(bytes_in, scale, ZERO, bias, out_scale, out_zero, torch.uint8, "gelu")

    def _call(
        self,
        bytes_in: Tensor,
        scale: float,
        zero: int,
        bias: Tensor | None,
        out_scale: float,
        out_zero: int,
        dtype: torch.dtype,
        post: str,
    ) -> Tensor:
        matrix = (self.packed, self.scale, self.zeros)
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            bytes_in, scale, zero, *matrix, bias, out_scale, out_zero, dtype, post, [], "none"
        )
        return result


class DynamicInt8:
    """Activations quantized as they come, with one scale per token.

    Per token, not per batch: a text's result must not depend on the texts it is batched with.
    """

    ROWS = 256  # at a time, so that what is computed on the way stays in the cache

    def __init__(self, affine: Affine) -> None:
        self.matrix, self.bias = Int8Matrix(affine), affine.bias.float()

    def __call__(self, values: Tensor) -> Tensor:
        result = torch.empty(len(values), len(self.bias))
        for start in range(0, len(values), self.ROWS):
            rows, part = values[start : start + self.ROWS], result[start : start + self.ROWS]
            scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(127)
            torch.mul(self.matrix.product(shifted(rows / scale), 1.0, None), scale, out=part).add_(self.bias)
        return result


class StaticInt8:
    """Activations quantized with fixed scales, one per channel, found beforehand on calibration texts.

    The scales are folded into the weights, so a channel with a few huge values costs the others no precision.
    """

    def __init__(self, affine: Affine, scales: Tensor) -> None:
        self.matrix = Int8Matrix(Affine(affine.weight.float() * scales, affine.bias))
        self.bias, self.per_scale = affine.bias.float(), 1 / scales

    def __call__(self, values: Tensor) -> Tensor:
        return self.matrix.product(self.quantized(values), 1.0, self.bias)

    def in_half(self, values: Tensor) -> Tensor:
        """The same, rounded to bfloat16 by the product itself: half as much is written."""
        return self.matrix.product(self.quantized(values), 1.0, self.bias, dtype=torch.bfloat16)

    def quantized(self, values: Tensor) -> Tensor:
        return shifted((values * self.per_scale).clamp_(-127, 127))


def shifted(values: Tensor) -> Tensor:
    """Values in [-127, 127] (overwritten) as bytes around ZERO. By way of int8: that conversion is the fast one."""
    return values.round_().to(torch.int8).view(torch.uint8).add_(ZERO)


LINEARS: dict[str, type[Linear]] = {"fp32": Float32, "bf16": BFloat16, "int8": DynamicInt8}


def check_int8() -> None:
    """Int8 products must be exact. Without oneDNN there are none, and old processors saturate at 16 bits."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise ConfigError("int8 needs a torch build with oneDNN, and this one has none; use fp32 or bf16")
    matrix = Int8Matrix(Affine(weight=torch.full((16, 64), 127.0), bias=torch.zeros(16)))
    found = matrix.product(torch.full((4, 64), 255, dtype=torch.uint8), 1.0, None)
    if not torch.equal(found, torch.full((4, 16), 127.0 * 127 * 64)):
        raise ConfigError("this processor's int8 products saturate (it has no VNNI); use fp32 or bf16")
