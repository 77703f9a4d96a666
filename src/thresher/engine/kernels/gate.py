"""The gated feed-forward between its products: activation(first half) times second half, in one pass.

Where the first product is ours, its end does that (see ends.py), without this pass."""
# mypy: disable-error-code="no-untyped-def"

from torch import Tensor

from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels import ends
from thresher.engine.kernels.eight import stored_as
from thresher.engine.kernels.ends import activated
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    jit,
    launching,
    live,
    live_rows,
    require_contiguous,
    tl,
    with_capacity,
)

ACTIVATIONS = ends.ACTIVATIONS[1:]
COLUMNS, ROWS = 256, 8


def gated(values: Tensor, *, activation: str, count: Tensor | None = None, units: Tensor | None = None) -> Tensor:
    """(capacity, 2 x width) -> (capacity, width), in the dtype of the values, or with units, (width,) float32, times
    these in e4m3. count: (1,) int32 live rows, or None."""
    require_contiguous(values=values)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation = {activation!r} is not one of: {', '.join(ACTIVATIONS)}")
    capacity, width = len(values), values.shape[1] // 2
    result = values.new_empty(capacity, width, dtype=values.dtype if units is None else EIGHT)
    _gated[(blocks(capacity, ROWS), blocks(width, COLUMNS))](
        result,
        values,
        count,
        units,
        capacity,
        WIDTH=width,
        ACTIVATION=activation,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        **launching(values, num_warps=4),
    )
    return result


def gated_reference(
    values: Tensor, *, activation: str, count: Tensor | None = None, units: Tensor | None = None
) -> Tensor:
    """The same in plain torch."""
    made = ends.gated_reference(live(values, count), activation)
    made = made if units is None else rounded(made, units).to(EIGHT)
    return with_capacity(made, len(values))


@jit
def _gated(
    result,  # (capacity, WIDTH)
    values,  # (capacity, 2 x WIDTH)
    count,  # (1,) int32, or None
    units,  # (WIDTH,) float32, or None
    capacity,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    first = tl.program_id(0) * ROWS
    end = live_rows(count, capacity)
    if first >= end:
        return
    row = first + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < end)[:, None] & (columns < WIDTH)[None, :]
    at = row.to(tl.int64)[:, None] * (2 * WIDTH) + columns[None, :]
    states = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(values + at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    states = activated(states, ACTIVATION, result.dtype.element_ty == tl.float32)
    to = row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    states *= gate
    if units is not None:
        states *= tl.load(units + columns, mask=columns < WIDTH, other=0.0)[None, :]
    tl.store(result + to, stored_as(states, result.dtype.element_ty), mask=mask)
