"""Matrix products of the rows that are live: the library's where nearly all are, our kernels' elsewhere."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from thresher.engine.kernels.linear import linear, linear_in_parts, plan
from thresher.engine.kernels.norm import add_norm
from thresher.engine.weights import Affine, Norm

# The library is faster on many rows, but computes those that are not live, too.
MANY_ROWS = 2048
NEARLY_ALL = 15 / 16


class Count(NamedTuple):
    """How many rows are live: (1,) int32, or None where all are; and about how many on the host, which decides on the
    way of computing, and so on the time, but is never relied on.
    """

    on_device: Tensor | None
    expected: int


def product(
    values: Tensor, affine: Affine, count: Count, *, activation: str = "none", rows: Tensor | None = None
) -> Tensor:
    """activation(values[rows] @ weight.T + bias): (capacity, outputs). values: (any, inputs); rows: (capacity,) int32,
    or None: all in order.
    """
    if activation == "none" and _by_library(values, count, rows):
        return F.linear(values, affine.weight, affine.bias)
    tile, _ = plan(count.expected, affine.weight, activated=activation != "none")
    return linear(
        values, affine.weight, affine.bias, activation=activation, rows=rows, count=count.on_device, tile=tile
    )


def normed_product(
    values: Tensor,
    affine: Affine,
    residual: Tensor,
    norm: Norm,
    count: Count,
    *,
    rows: Tensor | None = None,
    residual_rows: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """LayerNorm(values[rows] @ weight.T + bias + residual[residual_rows]): (capacity, outputs). `into`: the same
    before the norm is written there."""
    offset = None
    if _by_library(values, count, rows):
        sums = F.linear(values, affine.weight, affine.bias)
    else:
        tile, parts = plan(count.expected, affine.weight, divisible=True)
        options: Any = {"rows": rows, "count": count.on_device, "tile": tile}
        if parts == 1:
            sums = linear(values, affine.weight, affine.bias, **options)
        else:
            sums, offset = linear_in_parts(values, affine.weight, parts=parts, **options), affine.bias
    return add_norm(
        sums,
        residual,
        norm.weight,
        norm.bias,
        epsilon=norm.epsilon,
        offset=offset,
        rows=residual_rows,
        count=count.on_device,
        sums=into,
    )


def summed_product(
    values: Tensor,
    affine: Affine,
    residual: Tensor,
    norm: Norm,
    count: Count,
    *,
    rows: Tensor | None = None,
    residual_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For pre-norm layers: values[rows] @ weight.T + bias + residual[residual_rows], and its norm, in one pass."""
    capacity = len(values) if rows is None else len(rows)
    sums = residual.new_empty(capacity, len(affine.weight))
    normed = normed_product(values, affine, residual, norm, count, rows=rows, residual_rows=residual_rows, into=sums)
    return sums, normed


def normed(values: Tensor, norm: Norm | None, count: Count) -> Tensor:
    """LayerNorm of the live rows (capacity, width); the values themselves where there is none."""
    if norm is None:
        return values
    return add_norm(values, None, norm.weight, norm.bias, epsilon=norm.epsilon, count=count.on_device)


def _by_library(values: Tensor, count: Count, rows: Tensor | None) -> bool:
    if rows is not None:  # picking them in the load saves a pass over memory
        return False
    if count.on_device is None:
        return True
    return len(values) >= MANY_ROWS and count.expected >= NEARLY_ALL * len(values)
