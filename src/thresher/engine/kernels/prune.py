"""From what tokens received to the rows that stay: two launches, nothing read by the host.

The first decides and counts, a program per run. The second gives every run its place and writes the rows; it finds its
place by adding up the counts before it, which is cheaper than a third launch for a prefix sum (counts are integers and
a batch has at most thousands of them).

Attention received has a mean that is known beforehand. Scores by value are divided by the mean over their run, and
floats would add up to another sum in another order, which depends on the tile, and so on the batch. They are added up
as whole numbers, in a unit that the run's own highest score sets: at most 2**-40 of it is lost, and no order matters.
"""
# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass

import torch
from torch import Tensor

from thresher.core.scores import counted_queries
from thresher.engine.kernels.logits import asks
from thresher.engine.kernels.toolchain import begin, jit, launching, power_of_two, require_contiguous, tl, with_capacity

TOKENS = 1024  # of a run, decided or moved at once
COUNTS = 1024  # runs whose counts are added up at once
FEW_RUNS, FEW_TOKENS = 8, 1024  # one program decides and moves them all, and saves a launch


@dataclass(frozen=True)
class Kept:
    """What stays. All (capacity,) but cu_seqlens; past the live rows undefined.

    keep: bool, by old row; cu_seqlens: (sequences + 1,) int32; rows: int32, the old row of each new one, in order;
    positions: int32 and protected: bool, by new row.
    """

    keep: Tensor
    cu_seqlens: Tensor
    rows: Tensor
    positions: Tensor
    protected: Tensor


def prune(
    received: Tensor,
    cu_seqlens: Tensor,
    positions: Tensor,
    protected: Tensor,
    *,
    threshold: float,
    max_length: int,
    scale: str = "relative",
    score: str = "attention",
    score_queries: int = 1,
) -> Kept:
    """Keep the tokens whose score is above the threshold, and the protected ones: at least one in every run.

    received: (heads, capacity) float32 by head, attention's result for this score: "attention" is its mean over heads,
    "value" its sum over heads divided by the mean of that over the run's tokens; cu_seqlens: (sequences + 1,) int32;
    positions: (capacity,) int32; protected: (capacity,) bool. scale "paper" divides the score by the run's length;
    score_queries: whose attention it is, see `counted_queries`. A threshold of zero or less keeps everything.
    """
    require_contiguous(received=received, cu_seqlens=cu_seqlens, positions=positions, protected=protected)
    heads, capacity = received.shape
    sequences = len(cu_seqlens) - 1
    kept = Kept(
        keep=torch.empty_like(protected),
        cu_seqlens=torch.empty_like(cu_seqlens),
        rows=torch.empty_like(positions),
        positions=torch.empty_like(positions),
        protected=torch.empty_like(protected),
    )
    shared = {
        "keep": kept.keep.view(torch.uint8),
        "cu_seqlens": cu_seqlens,
        "positions": positions,
        "protected": protected.view(torch.uint8),
    }
    decided = {
        "received": received,
        "threshold": float(threshold),
        "capacity": capacity,
        "HEADS": heads,
        "PAPER": scale == "paper",
        "BY_VALUE": score == "value",
        "EVERY": 1 if score == "value" else score_queries,  # by value, scores have a mean of their own
    }
    moved = {
        "rows": kept.rows,
        "new_cu_seqlens": kept.cu_seqlens,
        "new_positions": kept.positions,
        "new_protected": kept.protected.view(torch.uint8),
        "sequences": sequences,
    }
    if sequences <= FEW_RUNS and capacity <= FEW_TOKENS:
        sizes = {"RUNS": power_of_two(sequences + 1), "BLOCK": power_of_two(capacity, least=32)}
        _decide_and_compact[(1,)](**shared, **decided, **moved, **sizes, **launching(received, num_warps=4))
        return kept
    shared["counts"] = cu_seqlens.new_empty(sequences)
    block = min(TOKENS, power_of_two(max_length, least=32))
    options = launching(received, num_warps=max(1, min(4, block // 64)))
    _decide[(sequences,)](**shared, **decided, BLOCK=block, **options)
    counts = min(COUNTS, power_of_two(sequences, least=32))
    _compact[(sequences,)](**shared, **moved, BLOCK=block, COUNTS=counts, **options)
    return kept


def prune_reference(
    received: Tensor,
    cu_seqlens: Tensor,
    positions: Tensor,
    protected: Tensor,
    *,
    threshold: float,
    max_length: int,
    scale: str = "relative",
    score: str = "attention",
    score_queries: int = 1,
) -> Kept:
    """The same in plain torch, equal to the last decision: heads are added in order, divisions are rounded once."""
    total, lengths = int(cu_seqlens[-1]), cu_seqlens.diff()
    scores = torch.zeros_like(received[0, :total])
    for by_head in received[:, :total]:
        scores = scores + by_head
    counted = counted_queries(positions[:total], score_queries)
    if score == "value":
        scores = _over_mean(scores, lengths)
    elif counted is None:
        scores = scores / received.shape[0]
    else:
        run = torch.repeat_interleave(lengths.long())
        count = torch.zeros_like(lengths).index_add(0, run, counted.int())
        scores = scores / ((count * received.shape[0]).to(scores.dtype) / lengths)[run]
    if scale == "paper":
        scores = scores / torch.repeat_interleave(lengths, lengths)
    keep = (scores > threshold) | protected[:total] | (threshold <= 0)
    rows = keep.nonzero().squeeze(-1)
    kept_before = torch.cat([keep.new_zeros(1, dtype=torch.int32), keep.cumsum(0, dtype=torch.int32)])
    capacity = len(positions)
    return Kept(
        keep=with_capacity(keep, capacity),
        cu_seqlens=kept_before[cu_seqlens.long()],
        rows=with_capacity(rows.int(), capacity),
        positions=with_capacity(positions[rows], capacity),
        protected=with_capacity(protected[rows], capacity),
    )


def _over_mean(moved: Tensor, lengths: Tensor) -> Tensor:
    """(total,) divided by the mean over each run of (sequences,) lengths; zero where all of a run is."""
    run = torch.repeat_interleave(lengths.long())
    peak = moved.new_full(lengths.shape, 2.0**-88).scatter_reduce(0, run, moved, "amax")
    unit = 2.0**40 * torch.frexp(peak).mantissa / peak  # a power of two
    moved = moved * unit[run]
    total = torch.zeros_like(lengths, dtype=torch.int64).index_add(0, run, moved.to(torch.int64))
    mean = total.to(moved.dtype) / lengths.clamp(min=1)
    return moved / mean[run].clamp(min=1.0)


@jit
def _added_up(received, rows, live, capacity, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Of each row, (BLOCK,): what it received, over the heads in their order."""
    total = tl.zeros((BLOCK,), tl.float32)
    for head in tl.static_range(HEADS):
        total += tl.load(received + head * capacity + rows, mask=live, other=0.0)
    return total


@jit
def _unit(peak):
    """The power of two that brings the peak between 2**39 and 2**40, by its exponent's bits; at most 2**127."""
    exponent = peak.to(tl.int32, bitcast=True) >> 23
    return ((293 - tl.maximum(exponent, 39)) << 23).to(tl.float32, bitcast=True)


@jit
def _mean(total, length):
    """Of whole numbers; one instead of less, where a run's values are all zero."""
    return tl.maximum(tl.div_rn(total.to(tl.float32), tl.maximum(length, 1).to(tl.float32)), 1.0)


@jit
def _mean_by_attention(count, length, HEADS: tl.constexpr):
    """What a token receives on average from so many queries of a run, over all heads."""
    return tl.div_rn((count * HEADS).to(tl.float32), tl.maximum(length, 1).to(tl.float32))


@jit
def _unit_and_mean(received, start, end, capacity, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a run's scores by value: the unit they are counted in, and their mean in it."""
    peaks = tl.zeros((BLOCK,), tl.float32)
    for first in range(start, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        peaks = tl.maximum(peaks, _added_up(received, rows, rows < end, capacity, HEADS, BLOCK))
    unit = _unit(tl.max(peaks, 0))
    totals = tl.zeros((BLOCK,), tl.int64)
    for first in range(start, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        totals += (_added_up(received, rows, rows < end, capacity, HEADS, BLOCK) * unit).to(tl.int64)
    return unit, _mean(tl.sum(totals, 0), end - start)


@jit
def _by_row(inside, by_run):
    """(BLOCK,): what belongs to each row's run, (RUNS,); inside: (RUNS, BLOCK). Zero outside of all runs."""
    return tl.sum(tl.where(inside, by_run[:, None], 0), 0)


@jit
def _decide_and_compact(
    keep,  # (capacity,) uint8; this and the next four are written
    rows,  # (capacity,) int32
    new_cu_seqlens,  # (sequences + 1,) int32
    new_positions,  # (capacity,) int32
    new_protected,  # (capacity,) uint8
    received,  # (HEADS, capacity) float32
    cu_seqlens,  # (sequences + 1,) int32
    positions,  # (capacity,) int32
    protected,  # (capacity,) uint8
    threshold,
    capacity,
    sequences,
    HEADS: tl.constexpr,
    PAPER: tl.constexpr,
    BY_VALUE: tl.constexpr,
    EVERY: tl.constexpr,
    RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    old = tl.arange(0, BLOCK)
    live = old < tl.load(cu_seqlens + sequences)
    run = tl.arange(0, RUNS)
    starts = tl.load(cu_seqlens + run, mask=run <= sequences, other=0)
    score = _added_up(received, old, live, capacity, HEADS, BLOCK)
    mean = tl.full((BLOCK,), HEADS, tl.float32)
    if PAPER or BY_VALUE or EVERY != 1:
        ends = tl.load(cu_seqlens + run + 1, mask=run < sequences, other=0)
        inside = (old[None, :] >= starts[:, None]) & (old[None, :] < ends[:, None])
    if BY_VALUE:
        score *= _by_row(inside, _unit(tl.max(tl.where(inside, score[None, :], 0.0), 1)))
        totals = tl.sum(tl.where(inside, score.to(tl.int64)[None, :], 0), 1)
        mean = tl.where(live, _by_row(inside, _mean(totals, ends - starts)), 1.0)
    if EVERY != 1:
        asked = asks(positions, old, live, EVERY).to(tl.int32)
        asked = tl.sum(tl.where(inside, asked[None, :], 0), 1)
        mean = tl.where(live, _by_row(inside, _mean_by_attention(asked, ends - starts, HEADS)), 1.0)
    # The plain division is approximate on a GPU; a decision must not depend on that.
    score = tl.div_rn(score, mean)
    if PAPER:
        score = tl.div_rn(score, tl.where(live, _by_row(inside, ends - starts).to(tl.float32), 1.0))
    flag = tl.load(protected + old, mask=live, other=0)
    kept = ((score > threshold) | (flag != 0) | (threshold <= 0.0)) & live
    count = kept.to(tl.int32)
    new = tl.cumsum(count, 0) - count
    before = tl.sum(tl.where(old[None, :] < starts[:, None], count[None, :], 0), 1)
    tl.store(new_cu_seqlens + run, before, mask=run <= sequences)
    tl.store(keep + old, count.to(tl.uint8), mask=live)
    tl.store(rows + new, old, mask=kept)
    tl.store(new_positions + new, tl.load(positions + old, mask=kept, other=0), mask=kept)
    tl.store(new_protected + new, flag, mask=kept)


@jit
def _decide(
    keep,  # (capacity,) uint8
    counts,  # (sequences,) int32
    received,  # (HEADS, capacity) float32
    cu_seqlens,  # (sequences + 1,) int32
    positions,  # (capacity,) int32
    protected,  # (capacity,) uint8
    threshold,
    capacity,
    HEADS: tl.constexpr,
    PAPER: tl.constexpr,
    BY_VALUE: tl.constexpr,
    EVERY: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    sequence = tl.program_id(0)
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    nought = tl.zeros((BLOCK,), tl.float32)
    mean = nought + HEADS
    if BY_VALUE:
        unit, of_run = _unit_and_mean(received, start, end, capacity, HEADS, BLOCK)
        mean = nought + of_run
    if EVERY != 1:
        asked = tl.zeros((BLOCK,), tl.int32)
        for first in range(start, end, BLOCK):
            rows = first + tl.arange(0, BLOCK)
            asked += asks(positions, rows, rows < end, EVERY).to(tl.int32)
        mean = nought + _mean_by_attention(tl.sum(asked, 0), end - start, HEADS)
    count = 0
    for first in range(start, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        live = rows < end
        score = _added_up(received, rows, live, capacity, HEADS, BLOCK)
        if BY_VALUE:
            score *= unit
        score = tl.div_rn(score, mean)
        if PAPER:
            score = tl.div_rn(score, nought + (end - start))
        kept = (score > threshold) | (tl.load(protected + rows, mask=live, other=0) != 0) | (threshold <= 0.0)
        kept = kept & live
        tl.store(keep + rows, kept.to(tl.uint8), mask=live)
        count += tl.sum(kept.to(tl.int32), 0)
    tl.store(counts + sequence, count)


@jit
def _compact(
    rows,  # (capacity,) int32; this and the next three are written
    new_cu_seqlens,  # (sequences + 1,) int32
    new_positions,  # (capacity,) int32
    new_protected,  # (capacity,) uint8
    keep,  # (capacity,) uint8
    counts,  # (sequences,) int32
    cu_seqlens,  # (sequences + 1,) int32
    positions,  # (capacity,) int32
    protected,  # (capacity,) uint8
    sequences,
    BLOCK: tl.constexpr,
    COUNTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    sequence = tl.program_id(0)
    place = 0
    for first in range(0, sequence, COUNTS):
        others = first + tl.arange(0, COUNTS)
        place += tl.sum(tl.load(counts + others, mask=others < sequence, other=0), 0)
    tl.store(new_cu_seqlens + sequence, place)
    if sequence == sequences - 1:
        tl.store(new_cu_seqlens + sequences, place + tl.load(counts + sequence))
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    for first in range(start, end, BLOCK):
        old = first + tl.arange(0, BLOCK)
        kept = tl.load(keep + old, mask=old < end, other=0).to(tl.int32)
        new = place + tl.cumsum(kept, 0) - kept
        here = kept != 0
        tl.store(rows + new, old, mask=here)
        tl.store(new_positions + new, tl.load(positions + old, mask=here, other=0), mask=here)
        tl.store(new_protected + new, tl.load(protected + old, mask=here, other=0), mask=here)
        place += tl.sum(kept, 0)
