"""What dropped tokens leave to heads that read all tokens: their last states, at the places they had in the input."""
# mypy: disable-error-code="no-untyped-def"

import torch
from torch import Tensor

from thresher.engine.kernels.toolchain import begin, jit, launching, power_of_two, require_contiguous, tl

ROWS = 16  # of a sequence at once
COLUMNS = 128


def leave_behind(
    states: Tensor, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor, starts: Tensor, *, keep: Tensor | None
) -> None:
    """Write rows of `hidden` to their tokens' places in `states`: those that are not kept, or all without `keep`.

    states: (places, width); hidden: (capacity, width); cu_seqlens, starts: (sequences + 1,) int32, where sequences
    start among the live rows and where they started in the input; positions: (capacity,) int32; keep: (capacity,) bool.
    """
    require_contiguous(states=states, hidden=hidden, cu_seqlens=cu_seqlens, positions=positions, starts=starts)
    width = hidden.shape[1]
    columns = min(COLUMNS, power_of_two(width))
    _leave[(len(cu_seqlens) - 1, -(-width // columns))](
        states=states,
        hidden=hidden,
        cu_seqlens=cu_seqlens,
        positions=positions,
        starts=starts,
        keep=None if keep is None else keep.view(torch.uint8),
        WIDTH=width,
        ROWS=ROWS,
        COLUMNS=columns,
        **launching(hidden, num_warps=4),
    )


def leave_behind_reference(
    states: Tensor, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor, starts: Tensor, *, keep: Tensor | None
) -> None:
    """The same, one sequence at a time."""
    bounds = cu_seqlens.tolist()
    for sequence, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        rows = torch.arange(start, end, device=hidden.device)
        if keep is not None:
            rows = rows[~keep[start:end]]
        states[int(starts[sequence]) + positions[rows].long()] = hidden[rows]


def mean_behind(states: Tensor, starts: Tensor) -> Tensor:
    """The mean state of every sequence, (sequences, width) in float32; zero for an empty one.

    states: (places, width); starts: (sequences + 1,) int32. Rows are added in their order, so that results repeat.
    """
    require_contiguous(states=states, starts=starts)
    width, sequences = states.shape[1], len(starts) - 1
    columns = min(COLUMNS, power_of_two(width))
    means = torch.empty(sequences, width, dtype=torch.float32, device=states.device)
    _mean[(sequences, -(-width // columns))](
        means=means,
        states=states,
        starts=starts,
        WIDTH=width,
        ROWS=ROWS,
        COLUMNS=columns,
        **launching(states, num_warps=4),
    )
    return means


def mean_behind_reference(states: Tensor, starts: Tensor) -> Tensor:
    """The same in plain torch."""
    lengths = starts.diff()
    owner = torch.repeat_interleave(lengths)
    sums = torch.zeros(len(lengths), states.shape[1], dtype=torch.float32, device=states.device)
    sums.index_add_(0, owner, states[: int(starts[-1])].float())
    return sums / lengths.clamp(min=1)[:, None]


@jit
def _leave(
    states,  # (places, WIDTH)
    hidden,  # (capacity, WIDTH)
    cu_seqlens,  # (sequences + 1,) int32
    positions,  # (capacity,) int32
    starts,  # (sequences + 1,) int32
    keep,  # (capacity,) uint8, or None
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < WIDTH
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    origin = tl.load(starts + sequence)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        goes = rows < end
        if keep is not None:
            goes = goes & (tl.load(keep + rows, mask=goes, other=1) == 0)
        places = origin + tl.load(positions + rows, mask=goes, other=0)
        mask = goes[:, None] & there[None, :]
        state = tl.load(hidden + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0)
        tl.store(states + places.to(tl.int64)[:, None] * WIDTH + columns[None, :], state, mask=mask)


@jit
def _mean(
    means,  # (sequences, WIDTH) float32
    states,  # (places, WIDTH)
    starts,  # (sequences + 1,) int32
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < WIDTH
    start = tl.load(starts + sequence)
    end = tl.load(starts + sequence + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        mask = (rows < end)[:, None] & there[None, :]
        state = tl.load(states + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0)
        total += tl.sum(state.to(tl.float32), 0)
    mean = total / tl.maximum(end - start, 1).to(tl.float32)
    tl.store(means + sequence.to(tl.int64) * WIDTH + columns, mean, mask=there)
