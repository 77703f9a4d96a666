"""Where some queries stand for all: a list of those that count in each long run, for the pass over its columns."""
# mypy: disable-error-code="no-untyped-def"

import torch
from torch import Tensor

from thresher.core.scores import counted_queries
from thresher.engine.kernels.logits import asks
from thresher.engine.kernels.toolchain import begin, jit, launching, tl

ROWS = 512  # that are looked at at once


def counted_rows(positions: Tensor, cu_seqlens: Tensor, *, score_queries: int, short: int) -> tuple[Tensor, Tensor]:
    """(capacity,) int32 each: from a run's start on, the rows of its queries that count, in order; and at every row of
    a run, how many of them there are up to it. Of runs of more than `short` tokens; elsewhere undefined."""
    chosen, up_to = torch.empty_like(positions), torch.empty_like(positions)
    _counted_rows[(len(cu_seqlens) - 1,)](
        chosen,
        up_to,
        positions,
        cu_seqlens,
        EVERY=score_queries,
        SHORT=short,
        ROWS=ROWS,
        **launching(positions, num_warps=4),
    )
    return chosen, up_to


def counted_rows_reference(
    positions: Tensor, cu_seqlens: Tensor, *, score_queries: int, short: int
) -> tuple[Tensor, Tensor]:
    """The same, one run at a time, with zeros where nothing is defined."""
    chosen, up_to = torch.zeros_like(positions), torch.zeros_like(positions)
    starts, counted = cu_seqlens.tolist(), counted_queries(positions, score_queries)
    assert counted is not None  # where all count, nobody needs a list
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        if end - start > short:
            rows = start + counted[start:end].nonzero().squeeze(-1)
            chosen[start : start + len(rows)] = rows.int()
            up_to[start:end] = counted[start:end].cumsum(0)
    return chosen, up_to


@jit
def _counted_rows(
    chosen,  # (capacity,) int32; this and the next are written
    up_to,  # (capacity,) int32
    positions,  # (capacity,) int32
    cu_seqlens,
    EVERY: tl.constexpr,
    SHORT: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run."""
    begin(EARLY)
    start = tl.load(cu_seqlens + tl.program_id(0))
    end = tl.load(cu_seqlens + tl.program_id(0) + 1)
    if end - start <= SHORT:
        return
    found = 0
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        counted = asks(positions, rows, rows < end, EVERY)
        count = found + tl.cumsum(counted.to(tl.int32), 0)
        tl.store(chosen + start + count - 1, rows, mask=counted)
        tl.store(up_to + rows, count, mask=rows < end)
        found += tl.sum(counted.to(tl.int32), 0)
