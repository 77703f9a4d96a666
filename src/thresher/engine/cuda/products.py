"""Matrix products in two ways with one signature: the library's on rows the host has counted, and our kernels'."""

from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from thresher.engine.kernels.linear import linear, linear_in_parts, plan
from thresher.engine.kernels.norm import add_norm
from thresher.engine.weights import Affine, Norm


class Count(NamedTuple):
    """How many rows are live: (1,) int32, or None where all are; and about how many on the host, which decides on
    tiles, and so on the time, but is never relied on.
    """

    on_device: Tensor | None
    expected: int


class Products(Protocol):
    """values: (any, inputs); rows: (capacity,) int32 of the values to take, or None: all in order."""

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        count: Count,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
    ) -> Tensor:
        """activation(values[rows] @ weight.T + bias): (capacity, outputs)."""

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        count: Count,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
    ) -> Tensor:
        """LayerNorm(values[rows] @ weight.T + bias + residual[residual_rows]): (capacity, outputs)."""


class KernelProducts:
    """Ours, which read the number of live rows on the device."""

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        count: Count,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
    ) -> Tensor:
        tile, _ = plan(count.expected, affine.weight, activated=activation != "none")
        return linear(
            values, affine.weight, affine.bias, activation=activation, rows=rows, count=count.on_device, tile=tile
        )

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        count: Count,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
    ) -> Tensor:
        tile, parts = plan(count.expected, affine.weight, divisible=True)
        live = count.on_device
        if parts == 1:
            product = linear(values, affine.weight, affine.bias, rows=rows, count=live, tile=tile)
        else:
            product = linear_in_parts(values, affine.weight, parts=parts, rows=rows, count=live, tile=tile)
        return add_norm(
            product,
            residual,
            norm.weight,
            norm.bias,
            epsilon=norm.epsilon,
            offset=None if parts == 1 else affine.bias,
            rows=residual_rows,
            count=live,
        )


class LibraryProducts(KernelProducts):
    """torch's own, but for products with an activation or gathered rows: ours save a pass over memory there."""

    def plain(
        self,
        values: Tensor,
        affine: Affine,
        count: Count,
        *,
        activation: str = "none",
        rows: Tensor | None = None,
    ) -> Tensor:
        if rows is None and activation == "none":
            return F.linear(values, affine.weight, affine.bias)
        return super().plain(values, affine, count, activation=activation, rows=rows)

    def normed(
        self,
        values: Tensor,
        affine: Affine,
        residual: Tensor,
        norm: Norm,
        count: Count,
        *,
        rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
    ) -> Tensor:
        product = self.plain(values, affine, count, rows=rows)
        return add_norm(
            product, residual, norm.weight, norm.bias, epsilon=norm.epsilon, rows=residual_rows, count=count.on_device
        )
