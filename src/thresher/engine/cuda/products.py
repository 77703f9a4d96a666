"""Matrix products of the rows that are live: the library's where nearly all are, our kernels' elsewhere.

What follows a product, a gate or turns by positions, is done in our kernels' end, or in a pass of its own after the
library's: `_in_its_end` decides.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.eight import EIGHT, eight_weight
from thresher.engine.kernels.eight import in_eight
from thresher.engine.kernels.gate import gated
from thresher.engine.kernels.linear import linear, linear_in_parts
from thresher.engine.kernels.norm import add_norm
from thresher.engine.kernels.plans import ACTIVATED, GATED, TURNED, estimate, holds, plan
from thresher.engine.kernels.rotary import Turns, rotate_
from thresher.engine.kernels.tiles import is_newest
from thresher.engine.weights import Affine, Norm

# The library is faster on many rows, but computes those that are not live, too.
MANY_ROWS = 2048
NEARLY_ALL = 15 / 16
# What may be done in a product's end: without a name, it always has a pass of its own.
IN_ITS_END = frozenset({"gate", "turns"})
# Estimates for the choice between the two, of an H200: the library's time as a share of our kernel's (NOTES.md has
# 78% to 106% of its speed), bytes that a pass moves in a microsecond, and microseconds around it.
LIBRARY = 0.95
MOVED = 4.2e6
AROUND_PASS = 2.0


class Count(NamedTuple):
    """How many rows are live: (1,) int32, or None where all are; and about how many on the host, which decides on the
    way of computing, and so on the time, but is never relied on.
    """

    on_device: Tensor | None
    expected: int


@dataclass(frozen=True)
class EightBit(Affine):
    """A product in e4m3: inputs are multiplied by `units` (in,), whose inverses are in the weight; a unit of the sums
    is `worth` (out,). Both in float32."""

    worth: Tensor
    units: Tensor

    @staticmethod
    def of(affine: Affine, scale: Tensor, dtype: torch.dtype) -> "EightBit":
        """scale: (in,) or one number, what a unit of the input is worth; dtype: of what the product gives."""
        weight, worth = eight_weight(affine.weight, scale)
        units = (1 / scale).expand(weight.shape[1]).contiguous()
        return EightBit(weight, affine.bias.to(dtype), worth, units)

    def part(self, outputs: slice) -> "EightBit":
        return EightBit(self.weight[outputs], self.bias[outputs], self.worth[outputs], self.units)


def units_of(affine: Affine) -> Tensor | None:
    """What the product wants its input to be multiplied by; None where it is not in eight bits."""
    return affine.units if isinstance(affine, EightBit) else None


def product(
    values: Tensor,
    affine: Affine,
    count: Count,
    *,
    activation: str = "none",
    rows: Tensor | None = None,
    units: Tensor | None = None,
) -> Tensor:
    """activation(values[rows] @ weight.T + bias): (capacity, outputs). values: (any, inputs); rows: (capacity,) int32,
    or None: all in order; units: of the product that takes the result and is in eight bits, or None.
    """
    if activation == "none" and _by_library(values, affine, count, rows):
        return F.linear(values, affine.weight, affine.bias)
    values, worth = _given(values, affine, count, rows)
    tile, _ = plan(count.expected, affine.weight, end=0.0 if activation == "none" else ACTIVATED)
    options: Any = {"worth": worth, "units": units, "rows": rows, "count": count.on_device, "tile": tile}
    return linear(values, affine.weight, affine.bias, activation=activation, **options)


def gated_product(
    values: Tensor, affine: Affine, count: Count, *, activation: str, units: Tensor | None = None
) -> Tensor:
    """activation(first half of the outputs) times the second half: (capacity, outputs / 2); else as `product`."""
    outputs, size = len(affine.bias), affine.bias.element_size()
    if not _in_its_end("gate", values, affine, count, end=GATED, moved=outputs * 3 // 2 * size):
        return gated(product(values, affine, count), activation=activation, count=count.on_device, units=units)
    values, worth = _given(values, affine, count, None)
    tile, _ = plan(count.expected, affine.weight, end=GATED)
    options: Any = {"worth": worth, "units": units, "count": count.on_device, "tile": tile}
    return linear(values, affine.weight, affine.bias, activation=activation, gated=True, **options)


def turned_product(values: Tensor, affine: Affine, turns: Turns, count: Count) -> Tensor:
    """`product`, whose first columns, queries and keys or keys, are turned by positions."""
    head, moved = 2 * turns.cosines.shape[1], 2 * turns.columns * affine.bias.element_size()
    whole = holds(affine.weight, head)
    if not whole or not _in_its_end("turns", values, affine, count, end=TURNED, moved=moved, multiple=head):
        projected = product(values, affine, count)
        rotate_(projected, turns, count=count.on_device)
        return projected
    values, worth = _given(values, affine, count, None)
    tile, _ = plan(count.expected, affine.weight, end=TURNED, multiple=head)
    options: Any = {"worth": worth, "count": count.on_device, "tile": tile}
    return linear(values, affine.weight, affine.bias, turns=turns, **options)


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
    units: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """LayerNorm(values[rows] @ weight.T + bias + residual[residual_rows]): (capacity, outputs), and what the product
    that follows is given: the same, or with its `units` in e4m3. `into`: the same before the norm is written there."""
    offset = None
    if _by_library(values, affine, count, rows):
        sums = F.linear(values, affine.weight, affine.bias)
    else:
        values, worth = _given(values, affine, count, rows)
        tile, parts = plan(count.expected, affine.weight, divisible=True)
        options: Any = {"worth": worth, "rows": rows, "count": count.on_device, "tile": tile}
        if parts == 1:
            sums = linear(values, affine.weight, affine.bias, **options)
        else:
            sums, offset = linear_in_parts(values, affine.weight, parts=parts, **options), affine.bias
    eight = None if units is None else residual.new_empty(sums.shape[-2:], dtype=EIGHT)
    found = add_norm(
        sums,
        residual,
        norm.weight,
        norm.bias,
        epsilon=norm.epsilon,
        offset=offset,
        rows=residual_rows,
        count=count.on_device,
        sums=into,
        units=units,
        eight=eight,
    )
    return found, found if eight is None else eight


def summed_product(
    values: Tensor,
    affine: Affine,
    residual: Tensor,
    norm: Norm,
    count: Count,
    *,
    rows: Tensor | None = None,
    residual_rows: Tensor | None = None,
    units: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For pre-norm layers: values[rows] @ weight.T + bias + residual[residual_rows], and its norm, as the product that
    follows is given it, in one pass."""
    capacity = len(values) if rows is None else len(rows)
    sums = residual.new_empty(capacity, len(affine.weight))
    which: Any = {"rows": rows, "residual_rows": residual_rows}
    _, given = normed_product(values, affine, residual, norm, count, **which, into=sums, units=units)
    return sums, given


def normed(values: Tensor, norm: Norm | None, count: Count) -> Tensor:
    """LayerNorm of the live rows (capacity, width); the values themselves where there is none."""
    if norm is None:
        return values
    return add_norm(values, None, norm.weight, norm.bias, epsilon=norm.epsilon, count=count.on_device)


def _given(values: Tensor, affine: Affine, count: Count, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A product's values, and what a unit of its sums is worth. Whoever makes the values rounds them on the way where
    time counts; elsewhere it is done here."""
    if not isinstance(affine, EightBit):
        return values, None
    if values.dtype != EIGHT:  # of rows that are picked, nobody knows how many are live
        values = in_eight(values, affine.units, count=count.on_device if rows is None else None)
    return values, affine.worth


def _by_library(values: Tensor, affine: Affine, count: Count, rows: Tensor | None) -> bool:
    if rows is not None or isinstance(affine, EightBit):  # picking rows in the load saves a pass over memory
        return False
    if count.on_device is None:
        return True
    return len(values) >= MANY_ROWS and count.expected >= NEARLY_ALL * len(values)


def _in_its_end(
    name: str, values: Tensor, affine: Affine, count: Count, *, end: float, moved: int, multiple: int = 1
) -> bool:
    """Whether what follows a product is done in its end: always where the product is our kernel's anyway. Where it
    would be the library's, a pass follows that moves so many bytes a row, and estimated times decide."""
    if name not in IN_ITS_END:
        return False
    if not _by_library(values, affine, count, None):
        return True
    # In float32, and on GPUs older than the one that was measured, our kernel is far behind the library.
    if affine.weight.dtype == torch.float32 or not is_newest(affine.weight.device):
        return False
    apart = LIBRARY * estimate(count.expected, affine.weight).microseconds
    apart += count.expected * moved / MOVED + AROUND_PASS
    return estimate(count.expected, affine.weight, end=end, multiple=multiple).microseconds < apart
