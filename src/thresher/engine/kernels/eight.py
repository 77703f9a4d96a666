"""Numbers in eight bits of floating point (e4m3, see engine/eight.py) as kernels make them."""
# mypy: disable-error-code="no-untyped-def"

from torch import Tensor

from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels.toolchain import (
    INTERPRETED,
    begin,
    blocks,
    jit,
    launching,
    live,
    live_rows,
    power_of_two,
    require_contiguous,
    tl,
    with_capacity,
)

NUMBERS = 4096  # to a program


def in_eight(values: Tensor, units: Tensor, *, count: Tensor | None = None) -> Tensor:
    """values * units in e4m3: (capacity, width). units: (width,) float32; count: (1,) int32 live rows, or None: all."""
    require_contiguous(values=values)
    capacity, width = values.shape
    result = values.new_empty(capacity, width, dtype=EIGHT)
    tile_width = power_of_two(width)
    rows = max(1, NUMBERS // tile_width)
    _in_eight[(blocks(capacity, rows),)](
        result,
        values,
        units,
        count,
        capacity,
        WIDTH=width,
        TILE_WIDTH=tile_width,
        ROWS=rows,
        **launching(values, num_warps=4),
    )
    return result


def in_eight_reference(values: Tensor, units: Tensor, *, count: Tensor | None = None) -> Tensor:
    """The same in plain torch."""
    return with_capacity(rounded(live(values, count), units).to(EIGHT), len(values))


@jit
def stored_as(values, KIND: tl.constexpr):
    """float32 in the type of a result. To e4m3 the hardware rounds to the nearest, and what is too large to 448; the
    interpreter cuts, so that there the same is computed before."""
    if INTERPRETED & (KIND == tl.float8e4nv):
        values = tl.minimum(tl.maximum(values, -448.0), 448.0)
        bits = values.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20 << 20).to(tl.float32, bitcast=True)
        small = (values + 24576.0) - 24576.0  # to multiples of 2^-9: 1.5 x 2^14 has no finer ones
        values = tl.where(tl.abs(values) < 0.015625, small, nearest)
    return values.to(KIND)


@jit
def _in_eight(
    result,  # (capacity, WIDTH) e4m3
    values,  # (capacity, WIDTH)
    units,  # (WIDTH,)
    count,  # (1,) int32, or None
    capacity,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, TILE_WIDTH)
    there = columns < WIDTH
    mask = (row < live_rows(count, capacity))[:, None] & there[None, :]
    at = row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    given = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
    given *= tl.load(units + columns, mask=there, other=0.0)[None, :]
    tl.store(result + at, stored_as(given, result.dtype.element_ty), mask=mask)
