"""Matrix products whose number of rows is on the device, with gather, bias and activation on the way.

A fixed number of programs share out the live tiles, so that rows that are not there cost nothing, and the loads of a
tile overlap with the stores of the one before. Tiles are read through descriptors (on sm_90 by the copy engine; Triton
turns them into plain loads elsewhere), gathered rows through pointers.
"""
# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels.eight import stored_as
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
    quotient,
    require_contiguous,
    tl,
    with_capacity,
)

ACTIVATIONS = ("none", "gelu", "gelu_tanh")
ALIGNED = 16  # bytes: what a row of a descriptor must be a multiple of


class Tile(NamedTuple):
    """Rows, columns and depth of a tile, warps, stages of the pipeline, programs to a processor; then microseconds: for
    1,000 inputs, around them, and for an activation. They are an H200's (benchmarks/gpu/NOTES.md), and only compared
    with each other.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int
    per_input: float = 1.0
    around: float = 0.0
    activation: float = 0.0


TILES = (
    Tile(128, 256, 64, 8, 3, 1, 10.2, 2.8, 4.2),
    Tile(128, 128, 64, 8, 6, 1, 5.5, 1.6, 1.6),
    Tile(64, 256, 64, 4, 4, 1, 5.1, 1.8, 3.3),
    Tile(64, 64, 128, 4, 4, 2, 2.4, 0.6, 0.5),
    Tile(64, 32, 128, 4, 3, 2, 2.1, 0.5, 0.5),
)
# For e4m3. The last two were timed with slower sums than they have now, so for few rows the others are taken too soon.
EIGHT_TILES = (
    Tile(128, 256, 128, 8, 3, 1, 4.7, 3.7, 1.9),
    Tile(128, 128, 128, 8, 4, 1, 2.8, 2.1, 0.9),
    Tile(128, 128, 128, 4, 3, 2, 4.3, 1.0, 0.1),
    Tile(64, 256, 128, 4, 3, 1, 2.9, 2.0, 1.5),
    Tile(64, 128, 128, 4, 4, 2, 2.0, 0.9, 0.3),
    Tile(64, 64, 128, 4, 3, 3, 1.6, 0.4, 0.3),
    Tile(64, 32, 128, 4, 4, 2, 1.2, 0.3, 0.1),
)
PLAIN_TILE = Tile(32, 64, 32, 4, 2, 2)  # float32, which has no tensor cores to feed
MOST_PARTS = 8
LARGEST_OF_PARTS = 128 * 128  # numbers in a tile
PARTS_PER_MICROSECOND = 5e5  # float32 sums of parts, stored and loaded again


def linear(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    worth: Tensor | None = None,
    units: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """activation(values[rows] @ weight.T * worth + bias) * units: (capacity, outputs).

    values: (any, inputs), contiguous rows; weight: (outputs, inputs); bias: (outputs,); worth: (outputs,) float32, of
    one unit of a sum, or None: 1; units: (outputs,) float32, with which the result is e4m3, or None: in the dtype of
    the values, or if these are e4m3 of the bias. rows: (capacity,) int32, or None: all in order; count: (1,) int32 live
    rows, or None: all; tile: from `plan`, or None: that for as many rows as there is room for. Sums are float32.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    capacity = len(values) if rows is None else len(rows)
    result = values.new_empty(capacity, len(weight), dtype=_result_dtype(values, bias, units))
    _launch(result, values, weight, bias, worth, units, rows, count, activation=activation, parts=1, tile=tile)
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
    _launch(result, values, weight, None, worth, None, rows, count, activation="none", parts=parts, tile=tile)
    return result


def linear_reference(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
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
    if activation != "none":
        result = F.gelu(result, approximate="tanh" if activation == "gelu_tanh" else "none")
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
    parts: int,
    tile: Tile | None,
) -> None:
    capacity = result.shape[-2]
    outputs, inputs = weight.shape
    if values.shape[1] != inputs:
        raise ValueError(f"values of width {values.shape[1]} do not fit a matrix of {inputs} inputs")
    if inputs * weight.element_size() % ALIGNED:
        raise ValueError(f"a matrix of {inputs} inputs has rows that are not a multiple of {ALIGNED} bytes")
    require_contiguous(values=values, weight=weight)
    tile = tile or plan(capacity, weight, activated=activation != "none")[0]
    programs = processors(values.device) * tile.programs
    _linear[(min(programs, parts * blocks(capacity, tile.rows) * blocks(outputs, tile.columns)),)](
        result,
        values if rows is not None else descriptor(values, (tile.rows, tile.depth)),
        descriptor(weight, (tile.columns, tile.depth)),
        weight,
        bias,
        worth,
        units,
        rows,
        count,
        capacity,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=parts,
        ACTIVATION=activation,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        GROUP=8,
        AHEAD=capacity <= tile.rows,
        **launching(values, num_warps=tile.warps, num_stages=tile.stages),
    )


def plan(rows: int, weight: Tensor, *, activated: bool = False, divisible: bool = False) -> tuple[Tile, int]:
    """The tile for so many rows, and in how many parts to divide the inputs if that is possible, by estimated time.

    Programs of one processor share its units, so a product takes as long as the processor with most tiles.
    """
    outputs, inputs = weight.shape
    if weight.dtype == torch.float32:
        return PLAIN_TILE, 1
    choices = []
    for tile in EIGHT_TILES if weight.dtype == EIGHT else TILES:
        for parts in (1, 2, 4, MOST_PARTS) if divisible else (1,):
            # Parts are float32: those of the largest tile do not fit in shared memory beside what is loaded ahead.
            if parts > 1 and (parts * tile.depth > inputs or tile.rows * tile.columns > LARGEST_OF_PARTS):
                continue
            tiles = parts * blocks(rows, tile.rows) * blocks(outputs, tile.columns)
            each = inputs / parts / 1000 * tile.per_input + tile.around + activated * tile.activation
            moved = parts * rows * outputs / PARTS_PER_MICROSECOND if parts > 1 else 0.0
            choices.append((blocks(tiles, processors(weight.device)) * each + moved, parts, tile))
    _, parts, tile = min(choices)
    return tile, parts


@jit
def gelu(values, EXACT: tl.constexpr):
    """x times the normal distribution function; unless exact, with the sigmoid of a fitted odd polynomial for it, at
    most 3.1e-6 away: the error function would take longer than all else that follows the sums.
    """
    if EXACT:
        scaled = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    else:
        square = values * values
        power = -3.2106336e-06 * square + 8.7913970e-05  # of two: the polynomial times -log2(e)
        power = power * square + 3.6202816e-04
        power = power * square - 1.0522995e-01
        power = power * square - 2.3020438
        scaled = quotient(values, 1.0 + tl.exp2(values * power))
    return scaled


@jit
def _linear(
    result,  # (PARTS, capacity, OUTPUTS)
    values,  # (any, INPUTS): tiles of (ROWS, DEPTH), or where rows are given a pointer
    weight,  # (OUTPUTS, INPUTS): tiles of (COLUMNS, DEPTH)
    numbers,  # of the same, a pointer
    bias,  # (OUTPUTS,), or None
    worth,  # (OUTPUTS,) float32, or None
    units,  # (OUTPUTS,) float32, or None
    rows,  # (capacity,) int32, or None
    count,  # (1,) int32, or None
    capacity,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
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
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
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
            sums = dot(tile, weight.load([first_column, at]).T, sums)

        column = first_column + tl.arange(0, COLUMNS)
        there = column < OUTPUTS
        if worth is not None:
            sums *= tl.load(worth + column, mask=there, other=0.0)[None, :]
        if bias is not None:
            sums += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION == "gelu":
            sums = gelu(sums, result.dtype.element_ty == tl.float32)
        elif ACTIVATION == "gelu_tanh":  # tanh by way of the sigmoid
            sums = quotient(sums, 1.0 + tl.exp2(-2.302208198 * (sums + 0.044715 * sums * sums * sums)))
        if units is not None:
            sums *= tl.load(units + column, mask=there, other=0.0)[None, :]
        to = result + (part.to(tl.int64) * capacity + row)[:, None] * OUTPUTS + column[None, :]
        tl.store(to, stored_as(sums, result.dtype.element_ty), mask=(row < end)[:, None] & there[None, :])
