"""Matrix products on CPUs in three arithmetics, with one signature: called with (rows, in), giving (rows, out)."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.weights import Affine


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


class Int8:
    """Symmetric int8: one scale per output channel for the weights, one per token for the activations.

    A scale per token, not per batch, keeps a text's result independent of the texts it is batched with.
    """

    ROWS = 1024  # at a time, so that the int32 products stay in the cache

    def __init__(self, affine: Affine) -> None:
        self.scale = (affine.weight.abs().amax(dim=1).clamp(min=1e-12) / 127).float()  # (out,)
        rounded = torch.round(affine.weight / self.scale[:, None]).clamp(-127, 127).to(torch.int8)
        self.weight = rounded.t().contiguous()  # (in, out)
        self.bias = affine.bias.float()

    def __call__(self, values: Tensor) -> Tensor:
        result = torch.empty(len(values), len(self.bias), dtype=torch.float32)
        for start in range(0, len(values), self.ROWS):
            rows = values[start : start + self.ROWS].float()
            scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1e-12).div_(127)
            rounded = (rows / scale).round_().to(torch.int8)
            part = result[start : start + self.ROWS]
            part.copy_(torch._int_mm(rounded, self.weight)).mul_(self.scale).mul_(scale).add_(self.bias)
        return result


LINEARS: dict[str, type[Linear]] = {"fp32": Float32, "bf16": BFloat16, "int8": Int8}
