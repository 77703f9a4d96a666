"""Products that lose what static int8 loses, in floating point: a model trained with them is the one that runs in int8.

Weights and inputs are whole numbers here, as in the engine, and gradients pass through the rounding as if it were not
there. Whole numbers of eight bits are exact in bf16, so training in it loses nothing in the products' factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thresher.core.scores import at_least_float32

MOST = 127.0
SMALLEST = 1e-12  # of a channel's largest weight


@dataclass(frozen=True)
class Site:
    """How the input of a layer's product is rounded. scale: what 1 is worth, (in,) or one number, in which case it is
    not folded into the weights; low, high: the whole numbers that there are."""

    scale: Tensor
    low: Tensor | float = -MOST
    high: Tensor | float = MOST


class Rounded(torch.autograd.Function):
    """To whole numbers in a range; the gradient passes where values were inside it, and nothing where they were cut."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
        ctx.save_for_backward((values >= low) & (values <= high))
        return values.round().clamp(low, high)  # type: ignore[arg-type]  # two numbers, or two tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None


def rounded(values: Tensor, low: Tensor | float = -MOST, high: Tensor | float = MOST) -> Tensor:
    """Any shape -> the same, in whole numbers."""
    found: Tensor = Rounded.apply(values, low, high)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def rounded_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) -> whole numbers (out, in), and what one of them is worth in each output channel, (out,)."""
    worth = weight.detach().abs().amax(dim=1).clamp(min=SMALLEST) / MOST
    return rounded(weight / worth[:, None]), worth


def int8_products(linears: Sequence[nn.Linear], values: Tensor, site: Site) -> list[Tensor]:
    """What int8 makes of several products of one input: (..., in) -> (..., out) each, in the dtype of plain ones."""
    folded = site.scale.dim() > 0
    whole = rounded(at_least_float32(values) * (1 / site.scale), site.low, site.high)
    found = []
    for linear in linears:
        weight, worth = rounded_weight(linear.weight * site.scale if folded else linear.weight)
        product = F.linear(whole, weight)
        output = product * (worth if folded else worth * site.scale)
        found.append((output if linear.bias is None else output + linear.bias).to(product.dtype))
    return found
