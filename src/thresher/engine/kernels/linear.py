"""Matrix products whose number of rows is on the device, with gather, bias, activation, gate and turns on the way.

A fixed number of programs share out the live tiles, so that rows that are not there cost nothing, and the loads of a
tile overlap with the stores of the one before. Tiles are read through descriptors (on sm_90 by the copy engine; Triton
turns them into plain loads elsewhere), gathered rows through pointers.
"""
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels.eight import stored_as
from thresher.engine.kernels.ends import (
    ACTIVATIONS,
    activated,
    activated_reference,
    gated_reference,
    halves,
    turned,
)
from thresher.engine.kernels.plans import ACTIVATED, GATED, TURNED, Tile, holds, plan
from thresher.engine.kernels.rotary import Turns, rotate_reference
from thresher.engine.kernels.toolchain import (
    INTERPRETED,
    begin,
    blocks,
    descriptor,
    dot,
    fetch,
    jit,
    launching,
    live,
    live_rows,
    processors,
    require_contiguous,
    tl,
    with_capacity,
)

ALIGNED = 16  # bytes: what a row of a descriptor must be a multiple of


def linear(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    gated: bool = False,
    turns: Turns | None = None,
    worth: Tensor | None = None,
    units: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """activation(values[rows] @ weight.T * worth + bias) * units: (capacity, outputs); gated, the activated first half
    of the outputs times the second half: (capacity, outputs / 2); with turns, its first columns are then turned.

    values: (any, inputs), contiguous rows; weight: (outputs, inputs); bias: (outputs,); worth: (outputs,) float32, of
    one unit of a sum, or None: 1; units: (outputs,) float32, with which the result is e4m3, or None: in the dtype of
    the values, or if these are e4m3 of the bias. rows: (capacity,) int32, or None: all in order; count: (1,) int32 live
    rows, or None: all; tile: from `plan`, or None: that for as many rows as there is room for. Sums are float32.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    capacity, outputs = len(values) if rows is None else len(rows), len(weight) // 2 if gated else len(weight)
    result = values.new_empty(capacity, outputs, dtype=_result_dtype(values, bias, units))
    given = (values, weight, bias, worth, units, rows, count)
    _launch(result, *given, activation=activation, gated=gated, turns=turns, parts=1, tile=tile)
    return result


def linear_in_parts(
    values: Tensor,
    weight: Tensor,
    *,
    parts: int,
    worth: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Sums over parts of the inputs, (parts, capacity, outputs) float32; all together they are values[rows] @ weight.T.

    A product with few rows and columns has few tiles; divided along its inputs as well, it fills the GPU. add_norm
    takes the parts and adds them up in order. The arguments are those of linear.
    """
    capacity = len(values) if rows is None else len(rows)
    result = values.new_empty(parts, capacity, len(weight), dtype=torch.float32)
    given = (values, weight, None, worth, None, rows, count)
    _launch(result, *given, activation="none", gated=False, turns=None, parts=parts, tile=tile)
    return result


def linear_reference(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    gated: bool = False,
    turns: Turns | None = None,
    worth: Tensor | None = None,
    units: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The same in plain torch."""
    capacity = len(values) if rows is None else len(rows)
    chosen = live(values, count) if rows is None else values[live(rows, count)]
    dtype = _result_dtype(values, bias, units)
    if worth is not None:  # e4m3 is multiplied in float32, which is exact
        chosen, weight = chosen.float(), weight.float() * worth[:, None]
        bias = None if bias is None else bias.float()
    result = F.linear(chosen, weight, bias)
    result = gated_reference(result, activation) if gated else activated_reference(result, activation)
    if turns is not None:
        result = rotate_reference(result, turns)
    if units is not None:
        result = rounded(result, units)
    return with_capacity(result.to(dtype), capacity)


def linear_in_parts_reference(
    values: Tensor,
    weight: Tensor,
    *,
    parts: int,
    worth: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """The same in plain torch, but all in the first part: only the sum is defined."""
    values, weight = (each.float() if each.dtype == EIGHT else at_least_float32(each) for each in (values, weight))
    product = linear_reference(values, weight, worth=worth, rows=rows, count=count)
    return with_capacity(product[None], parts)


def _result_dtype(values: Tensor, bias: Tensor | None, units: Tensor | None) -> torch.dtype:
    if units is not None:
        return EIGHT
    if values.dtype != EIGHT:
        return values.dtype
    return torch.float32 if bias is None else bias.dtype


def _launch(
    result: Tensor,
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    worth: Tensor | None,
    units: Tensor | None,
    rows: Tensor | None,
    count: Tensor | None,
    *,
    activation: str,
    gated: bool,
    turns: Turns | None,
    parts: int,
    tile: Tile | None,
) -> None:
    capacity, outputs = result.shape[-2:]
    inputs = weight.shape[1]
    if values.shape[1] != inputs:
        raise ValueError(f"values of width {values.shape[1]} do not fit a matrix of {inputs} inputs")
    if inputs * weight.element_size() % ALIGNED:
        raise ValueError(f"a matrix of {inputs} inputs has rows that are not a multiple of {ALIGNED} bytes")
    positions, cosines, sines, turned_columns = (None, None, None, 0) if turns is None else turns
    require_contiguous(values=values, weight=weight, positions=positions, cosines=cosines, sines=sines)
    head = 0 if cosines is None else 2 * cosines.shape[1]
    if head and not holds(weight, head):
        raise ValueError(f"no tile holds whole heads of {head} columns; turn them by rotate_")
    tile = tile or plan(capacity, weight, end=end_of(activation, gated, turns), multiple=max(1, head))[0]
    columns = tile.columns // 2 if gated else tile.columns
    programs = processors(values.device) * tile.programs
    _linear[(min(programs, parts * blocks(capacity, tile.rows) * blocks(outputs, columns)),)](
        result,
        values if rows is not None else descriptor(values, (tile.rows, tile.depth)),
        _described(weight, columns, tile.depth, gated=gated),
        weight,
        bias,
        worth,
        units,
        rows,
        count,
        positions,
        cosines,
        sines,
        capacity,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=parts,
        ACTIVATION=activation,
        GATED=gated,
        TURNED=turned_columns,
        HALF=head // 2,
        ROWS=tile.rows,
        COLUMNS=columns,
        DEPTH=tile.depth,
        GROUP=8,
        AHEAD=capacity <= tile.rows,
        **launching(values, num_warps=tile.warps, num_stages=tile.stages),
    )


def _described(weight: Tensor, columns: int, depth: int, *, gated: bool) -> Any:
    """A gated product's tiles have the same columns of both halves, one behind the other, in one load."""
    if gated:
        return descriptor(weight.view(2, len(weight) // 2, weight.shape[1]), (2, columns, depth))
    return descriptor(weight, (columns, depth))


def end_of(activation: str, gated: bool, turns: Turns | None) -> float:
    """What follows the sums, as `plan` counts it."""
    made = 0.0 if activation == "none" else GATED if gated else ACTIVATED
    return made if turns is None else made + TURNED


@jit
def _with_bias(sums, worth, bias, column, there):
    """Sums in what their units are worth, and the bias; of both there may be none."""
    if worth is not None:
        sums *= tl.load(worth + column, mask=there, other=0.0)[None, :]
    if bias is not None:
        sums += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    return sums


@jit
def _linear(
    result,  # (PARTS, capacity, OUTPUTS)
    values,  # (any, INPUTS): tiles of (ROWS, DEPTH), or where rows are given a pointer
    weight,  # (OUTPUTS, INPUTS): tiles of (COLUMNS, DEPTH); gated (2, OUTPUTS, INPUTS): of (2, COLUMNS, DEPTH)
    numbers,  # of the same, a pointer
    bias,  # (OUTPUTS,), gated (2 x OUTPUTS,), or None
    worth,  # the same in float32, or None
    units,  # (OUTPUTS,) float32, or None
    rows,  # (capacity,) int32, or None
    count,  # (1,) int32, or None
    positions,  # (capacity,) int32, or None: nothing is turned
    cosines,  # (positions, HALF) float32, or None
    sines,  # the same
    capacity,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    TURNED: tl.constexpr,  # so many columns are
    HALF: tl.constexpr,  # of a head's width
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    WIDE: tl.constexpr = 2 * COLUMNS if GATED else COLUMNS
    column_blocks: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    part_depth: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH) * DEPTH
    if AHEAD & EARLY:
        # The rows fit in one tile, so it is known which weights this program needs: they set out for the L2 cache while
        # the kernel in front still runs.
        mine = tl.program_id(0) // PARTS * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.program_id(0) % PARTS * part_depth
        LINE: tl.constexpr = 128 // (numbers.dtype.element_ty.primitive_bitwidth // 8)
        for step in range(0, part_depth, DEPTH):
            deep = start + step + tl.arange(0, DEPTH // LINE) * LINE
            fetch(numbers + (mine % OUTPUTS)[:, None] * INPUTS + (deep % INPUTS)[None, :])
            if GATED:
                fetch(numbers + (OUTPUTS + mine % OUTPUTS)[:, None] * INPUTS + (deep % INPUTS)[None, :])
    begin(EARLY)
    end = live_rows(count, capacity)
    row_blocks = tl.cdiv(end, ROWS)
    for program in tl.range(tl.program_id(0), row_blocks * column_blocks * PARTS, tl.num_programs(0), flatten=True):
        part = program % PARTS
        place = program // PARTS
        # Neighbours take a few rows of blocks together, column by column: both operands stay in the L2 cache.
        first_block = place // (GROUP * column_blocks) * GROUP
        group = tl.minimum(row_blocks - first_block, GROUP)
        within = place % (GROUP * column_blocks)
        first = (first_block + within % group) * ROWS
        first_column = within // group * COLUMNS
        row = first + tl.arange(0, ROWS)
        if rows is not None:
            old = tl.load(rows + row, mask=row < end, other=0).to(tl.int64)
            depth = tl.arange(0, DEPTH)
            left = values + old[:, None] * INPUTS + depth[None, :]
        sums = tl.zeros((ROWS, WIDE), tl.float32)
        for step in range(0, part_depth, DEPTH):
            at = part * part_depth + step
            if rows is None:
                tile = values.load([first, at])
                if INTERPRETED:  # numpy warns of whatever is in rows that are not there
                    tile = tl.where((row < end)[:, None], tile.to(sums.dtype), 0.0).to(tile.dtype)
            elif INPUTS % (PARTS * DEPTH) == 0:
                tile = tl.load(left + at)
            else:
                tile = tl.load(left + at, mask=(depth < INPUTS - at)[None, :], other=0.0)
            if GATED:
                matrix = tl.reshape(weight.load([0, first_column, at]), (WIDE, DEPTH))
            else:
                matrix = weight.load([first_column, at])
            sums = dot(tile, matrix.T, sums)

        column = first_column + tl.arange(0, COLUMNS)
        there = column < OUTPUTS
        exact: tl.constexpr = result.dtype.element_ty == tl.float32
        if GATED:
            states, gate = halves(sums)
            states = activated(_with_bias(states, worth, bias, column, there), ACTIVATION, exact)
            sums = states * _with_bias(gate, worth, bias, OUTPUTS + column, there)
        else:
            sums = activated(_with_bias(sums, worth, bias, column, there), ACTIVATION, exact)
        if positions is not None:
            place_of = tl.load(positions + row, mask=row < end, other=0)
            sums = turned(sums, place_of, first_column, cosines, sines, TURNED, HALF, COLUMNS)
        if units is not None:
            sums *= tl.load(units + column, mask=there, other=0.0)[None, :]
        to = result + (part.to(tl.int64) * capacity + row)[:, None] * OUTPUTS + column[None, :]
        tl.store(to, stored_as(sums, result.dtype.element_ty), mask=(row < end)[:, None] & there[None, :])
