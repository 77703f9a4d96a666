"""Matrix products in two ways with one signature: the library's on rows the host has counted, and our kernels'."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.kernels.linear import linear, linear_in_parts
from thresher.engine.kernels.norm import add_norm
from thresher.engine.kernels.toolchain import blocks, power_of_two
from thresher.engine.weights import Affine, Norm

# A product of few rows is divided along its inputs until there are two programs for every processor.
MOST_PARTS = 8
FEW_ROWS = 512
PART_INPUTS = 256  # at least, so that a part is worth a program
PROCESSORS = 132  # of an H200; others have 80 to 160, which changes the number of parts by less than a factor of two


class Products(Protocol):
    """values: (any, inputs); rows: (capacity,) int32 of the values to take, or None: all; count: (1,) live rows."""

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        """activation(values[rows] @ weight.T + bias): (capacity, outputs)."""

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        """LayerNorm(values[rows] @ weight.T + bias + residual[residual_rows]): (capacity, outputs)."""


class LibraryProducts:
    """torch's own. `in_kernels` names what is nevertheless left to ours, as that saves a pass over memory: "gathered"
    products (the kept rows are picked in the load) and "activated" ones (GELU is taken before the store).
    """

    def __init__(self, in_kernels: frozenset[str] = frozenset()) -> None:
        self.in_kernels = in_kernels

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        gathered, activated = rows is not None, activation != "none"
        if (gathered and "gathered" in self.in_kernels) or (activated and "activated" in self.in_kernels):
            return linear(values, affine.weight, affine.bias, activation=activation, rows=rows, count=count)
        result = F.linear(values if rows is None else values.index_select(0, rows), affine.weight, affine.bias)
        if activated:  # in place: the widened states are the biggest of a layer
            torch.ops.aten.gelu_(result, approximate="tanh" if activation == "gelu_tanh" else "none")
        return result

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        product = self.plain(values, affine, rows=rows, count=count)
        return add_norm(
            product, residual, norm.weight, norm.bias, epsilon=norm.epsilon, rows=residual_rows, count=count
        )


class KernelProducts:
    """Ours, which read the number of live rows on the device."""

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        return linear(values, affine.weight, affine.bias, activation=activation, rows=rows, count=count)

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        parts = parts_for(len(values) if rows is None else len(rows), affine.weight)
        if parts == 1:
            product, offset = linear(values, affine.weight, affine.bias, rows=rows, count=count), None
        else:
            product = linear_in_parts(values, affine.weight, parts=parts, rows=rows, count=count)
            offset = affine.bias
        return add_norm(
            product,
            residual,
            norm.weight,
            norm.bias,
            epsilon=norm.epsilon,
            offset=offset,
            rows=residual_rows,
            count=count,
        )


def parts_for(capacity: int, weight: Tensor) -> int:
    """How many parts to divide a product's inputs into: a power of two."""
    outputs, inputs = weight.shape
    if capacity > FEW_ROWS:
        return 1
    tiles = blocks(capacity, 64) * blocks(outputs, 64)
    wanted = power_of_two(blocks(2 * PROCESSORS, tiles))
    while wanted > 1 and (wanted > MOST_PARTS or inputs < wanted * PART_INPUTS):
        wanted //= 2
    return wanted
