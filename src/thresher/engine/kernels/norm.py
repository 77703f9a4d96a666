"""Residual and layer normalisation of the live rows, statistics in float32."""
# mypy: disable-error-code="no-untyped-def"

import torch.nn.functional as F
from torch import Tensor

from thresher.engine.eight import rounded
from thresher.engine.kernels.eight import stored_as
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    jit,
    launching,
    live,
    live_rows,
    power_of_two,
    processors,
    require_contiguous,
    tl,
    with_capacity,
)

PROGRAMS = 16  # to a processor


def add_norm(
    values: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    epsilon: float,
    offset: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    sums: Tensor | None = None,
    units: Tensor | None = None,
    eight: Tensor | None = None,
) -> Tensor:
    """LayerNorm(values + offset + residual[rows]): (capacity, width), in the dtype of the residual if there is one.

    values: (capacity, width), or (parts, capacity, width) to be added up; residual: (any, width); offset, weight, bias:
    (width,); rows: (capacity,) int32, the residual's row of each value, or None: the same row; count: (1,) int32 live
    rows, or None: all; sums: (capacity, width), where what was normalised is stored; eight: (capacity, width) e4m3,
    where the result times units, (width,) float32, is stored.
    """
    require_contiguous(values=values, residual=residual, sums=sums, eight=eight)
    capacity, width = values.shape[-2:]
    result = (values if residual is None else residual).new_empty(capacity, width)
    tile_width = power_of_two(width)
    # Two rows of a base-size model share a program: every thread has two vectors of 8 numbers to load.
    tile_rows = max(1, 2048 // tile_width)
    # A program more than can run at once would only find out that its rows are not live.
    _add_norm[(min(blocks(capacity, tile_rows), PROGRAMS * processors(result.device)),)](
        result,
        values,
        residual,
        weight,
        bias,
        offset,
        rows,
        count,
        sums,
        units,
        eight,
        capacity,
        epsilon,
        PARTS=1 if values.dim() == 2 else len(values),
        WIDTH=width,
        TILE_WIDTH=tile_width,
        ROWS=tile_rows,
        **launching(result, num_warps=4),
    )
    return result


def add_norm_reference(
    values: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    epsilon: float,
    offset: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    sums: Tensor | None = None,
    units: Tensor | None = None,
    eight: Tensor | None = None,
) -> Tensor:
    """The same in plain torch."""
    dtype = values.dtype if residual is None else residual.dtype
    total = live(values if values.dim() == 2 else values.sum(dim=0).to(dtype), count)
    if offset is not None:
        total = total + offset
    if residual is not None:
        total = total + (residual[: len(total)] if rows is None else residual[live(rows, count)])
    if sums is not None:
        sums[: len(total)] = total
    final = F.layer_norm(total, total.shape[-1:], weight, bias, epsilon)
    if eight is not None and units is not None:
        eight[: len(total)] = rounded(final, units).to(eight.dtype)
    return with_capacity(final, values.shape[-2])


@jit
def normalised(values, weight, bias, epsilon, columns, there, WIDTH: tl.constexpr):
    """Layer normalisation of a tile (rows, tile width) whose columns beyond the width hold zeros."""
    mean = tl.sum(values, 1) / WIDTH
    centred = tl.where(there[None, :], values - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + epsilon)
    slope = tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    return centred * inverse[:, None] * slope[None, :] + offset[None, :]


@jit
def _add_norm(
    result,  # (capacity, WIDTH)
    values,  # (PARTS, capacity, WIDTH)
    residual,  # (any, WIDTH), or None
    weight,  # (WIDTH,)
    bias,  # (WIDTH,)
    offset,  # (WIDTH,), or None
    rows,  # (capacity,) int32, or None
    count,  # (1,) int32, or None
    sums,  # (capacity, WIDTH), or None
    units,  # (WIDTH,) float32, or None
    eight,  # (capacity, WIDTH) e4m3, or None
    capacity,
    epsilon,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    end = live_rows(count, capacity)
    columns = tl.arange(0, TILE_WIDTH)
    there = columns < WIDTH
    for first in range(tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        here = row < end
        mask = here[:, None] & there[None, :]
        at = row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        if rows is not None:
            other = tl.load(rows + row, mask=here, other=0).to(tl.int64)[:, None] * WIDTH + columns[None, :]
        else:
            other = at
        total = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            elsewhere = tl.cast(capacity, tl.int64) * (part * WIDTH) + at
            total += tl.load(values + elsewhere, mask=mask, other=0.0).to(tl.float32)
        if offset is not None:
            total += tl.load(offset + columns, mask=there, other=0.0).to(tl.float32)[None, :]
        if residual is not None:
            total += tl.load(residual + other, mask=mask, other=0.0).to(tl.float32)
        if sums is not None:
            tl.store(sums + at, total.to(sums.dtype.element_ty), mask=mask)
        final = normalised(total, weight, bias, epsilon, columns, there, WIDTH)
        tl.store(result + at, final.to(result.dtype.element_ty), mask=mask)
        if eight is not None:
            final *= tl.load(units + columns, mask=there, other=0.0)[None, :]
            tl.store(eight + at, stored_as(final, eight.dtype.element_ty), mask=mask)
