"""Queries and keys turned by their original positions, in place, before attention.

Where the product that makes them is ours, it turns them in its end (see ends.py), without this pass."""
# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

from torch import Tensor

from thresher.core.places import rotated
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    jit,
    launching,
    live_rows,
    power_of_two,
    require_contiguous,
    tl,
)

ROWS = 32  # of a program: for one head, a few vectors to each thread


class Turns(NamedTuple):
    """positions: (capacity,) int32; cosines, sines: (positions, half a head's width) float32; how many columns, heads
    inside, are turned."""

    positions: Tensor
    cosines: Tensor
    sines: Tensor
    columns: int


def rotate_(states: Tensor, turns: Turns, *, count: Tensor | None = None) -> None:
    """Turn the first columns of live rows in place; computed in float32. states: (capacity, any); count: (1,) int32
    live rows, or None: all.
    """
    positions, cosines, sines, columns = turns
    require_contiguous(states=states, positions=positions, cosines=cosines, sines=sines)
    half = cosines.shape[1]
    _rotate[(blocks(len(states), ROWS), columns // (2 * half))](
        states,
        positions,
        cosines,
        sines,
        count,
        len(states),
        ROW=states.shape[1],
        HALF=half,
        TILE_HALF=power_of_two(half),
        ROWS=ROWS,
        **launching(states, num_warps=4),
    )


def rotate_reference(states: Tensor, turns: Turns, *, count: Tensor | None = None) -> Tensor:
    """The same in plain torch, as a new tensor."""
    positions, cosines, sines, columns = turns
    rows = len(states) if count is None else int(count)
    at, result = positions[:rows].long(), states.clone()
    turning = states[:rows, :columns].reshape(rows, -1, 2 * cosines.shape[1])
    both = (table[at].repeat(1, 2)[:, None].to(cosines.dtype) for table in (cosines, sines))
    result[:rows, :columns] = rotated(turning, *both).flatten(1)
    return result


@jit
def _rotate(
    states,  # (capacity, ROW)
    positions,  # (capacity,) int32
    cosines,  # (positions, HALF) float32
    sines,  # (positions, HALF) float32
    count,  # (1,) int32, or None
    capacity,
    ROW: tl.constexpr,
    HALF: tl.constexpr,
    TILE_HALF: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per block of rows and head."""
    begin(EARLY)
    first = tl.program_id(0) * ROWS
    end = live_rows(count, capacity)
    if first >= end:
        return
    row = first + tl.arange(0, ROWS)
    here = row < end
    columns = tl.arange(0, TILE_HALF)
    mask = here[:, None] & (columns < HALF)[None, :]
    angle = tl.load(positions + row, mask=here, other=0)[:, None] * HALF + columns[None, :]
    cosine = tl.load(cosines + angle, mask=mask, other=0.0)
    sine = tl.load(sines + angle, mask=mask, other=0.0)
    low = states + row.to(tl.int64)[:, None] * ROW + tl.program_id(1) * (2 * HALF) + columns[None, :]
    one = tl.load(low, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(low + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(low, (one * cosine - other * sine).to(states.dtype.element_ty), mask=mask)
    tl.store(low + HALF, (other * cosine + one * sine).to(states.dtype.element_ty), mask=mask)
