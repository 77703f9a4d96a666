"""Attention inside each run of a packed batch, and how much of it every token receives, without atomics.

A short run is one program per head: all its keys are in one tile, so the column sums of the probabilities cost little.
Longer runs take the usual pass with a running maximum, which stores each query's log-sum-exp, and a second pass per
block of keys that recomputes the logits (not the context) to add up the columns: see long_runs.py, and tiles.py for
what is long. That depends on the run's own length alone, so what is computed here for a text never depends on the texts
in its batch. Where some queries stand for all, the second pass visits these alone. For scores by value, columns are
multiplied by the lengths of the keys' value vectors before they are stored.
"""
# mypy: disable-error-code="no-untyped-def"

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from thresher.core.scores import at_least_float32, counted_queries
from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels.distances import Distances, distance_products
from thresher.engine.kernels.logits import (
    asks,
    lengths_of,
    logits_of,
    logits_reference,
    place_arguments,
    store_context,
    tile,
)
from thresher.engine.kernels.long_runs import attend_long_runs
from thresher.engine.kernels.tiles import is_newest, rungs
from thresher.engine.kernels.toolchain import (
    begin,
    dot,
    jit,
    launching,
    power_of_two,
    require_contiguous,
    tl,
    with_capacity,
)

QUERIES = 64  # of a run, at once
# Most runs are short: with 128 registers a thread, four programs share a processor, and the longer ones spill a few.
WHOLE_TILES = {"num_warps": 4, "num_stages": 1, "maxnreg": 128}
WIDE_TILES = {"num_warps": 4, "num_stages": 1}  # more than 128 keys


def attention(
    qkv: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    max_length: int,
    score: str | None,
    score_queries: int = 1,
    positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    distances: Distances | None = None,
    window: int | None = None,
    divisor: float | None = None,
    typical: int | None = None,
    units: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The context (capacity, width) and, with a score, what tokens received by head (heads, capacity) in float32.

    qkv: (capacity, 3 x width), all queries, all keys, all values, heads inside; cu_seqlens: (sequences + 1,) int32,
    empty runs allowed; max_length: no run is longer. What goes by places needs positions, (capacity,) int32, which rise
    in every run: distance_bias (2 x reach - 1, heads) float32, added to the logits by key minus query position;
    distances, whose products are added before logits are divided; window: keys are at most so far from the query.
    divisor of the logits: the square root of the head's width if not given. score: "attention", "value" (attention
    times the length of the token's value vector in this head), or None; score_queries: from which queries, see
    `counted_queries`, which needs positions, too, where it is not 1. Heads are put together by prune, in a fixed
    order. typical: about how many tokens a run has, where somebody knows, which changes the time but no result.
    units: (width,) float32: the context times these, in e4m3; None: the context in the dtype of qkv.
    """
    require_contiguous(qkv=qkv, cu_seqlens=cu_seqlens, positions=positions)
    width = qkv.shape[1] // 3
    places = {"biased": distance_bias is not None, "windowed": window is not None, "distant": distances is not None}
    long_rungs = rungs(width // heads, qkv.dtype, newest=is_newest(qkv.device), **places)
    whole = long_rungs[0].longer_than
    products = distance_products(qkv, cu_seqlens, positions, distances, max_length=max_length)
    programs = (len(cu_seqlens) - 1) * heads
    received = qkv.new_empty(heads, len(qkv), dtype=torch.float32) if score else None
    shared = {
        "qkv": qkv,
        "cu_seqlens": cu_seqlens,
        "capacity": len(qkv),
        "scale": math.log2(math.e) / (divisor or math.sqrt(width // heads)),
        **place_arguments(positions, distance_bias, window, distances, products),
        "HEADS": heads,
        "WIDTH": width // heads,
        "TILE_WIDTH": power_of_two(width // heads, least=16),
    }
    every = score_queries if score else 1
    _check_places(every, positions)
    scored = {**shared, "positions": positions} if every != 1 else shared
    context = qkv.new_empty(len(qkv), width, dtype=qkv.dtype if units is None else EIGHT)
    apart = received is not None and (typical or 0) > 64
    for longer_than, widest in _tile_widths(max_length, whole, split=apart):
        tiles = WHOLE_TILES if widest <= 128 and distances is None else WIDE_TILES
        _whole_runs[(programs,)](
            context=context,
            units=units,
            received=received,
            **scored,
            BY_VALUE=score == "value",
            EVERY=every,
            LONGER_THAN=longer_than,
            WIDEST=widest,
            QUERIES=QUERIES,
            **launching(qkv, **tiles),
        )
    if max_length > whole:
        attend_long_runs(
            long_rungs,
            shared,
            context=context,
            units=units,
            received=received,
            by_value=score == "value",
            score_queries=every,
            positions=positions,
            max_length=max_length,
            typical=typical,
        )
    return context, received


def attention_reference(
    qkv: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    max_length: int,
    score: str | None,
    score_queries: int = 1,
    positions: Tensor | None = None,
    typical: int | None = None,
    units: Tensor | None = None,
    **places: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same, one run at a time."""
    width, starts, contexts, received = qkv.shape[1] // 3, cu_seqlens.tolist(), [], []
    _check_places(score_queries if score else 1, positions)
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        parts = qkv[start:end].chunk(3, dim=-1)
        query, key, value = (part.view(end - start, heads, width // heads).transpose(0, 1) for part in parts)
        at = None if positions is None else positions[start:end]
        probabilities = torch.softmax(logits_reference(query, key, at, **places), dim=-1)  # (heads, queries, keys)
        contexts.append((probabilities.to(value.dtype) @ value).transpose(0, 1).flatten(1))
        counted = None if at is None else counted_queries(at, score_queries)
        columns = probabilities.sum(dim=1) if counted is None else probabilities[:, counted].sum(dim=1)
        received.append(columns * at_least_float32(value).norm(dim=-1) if score == "value" else columns)
    scores = with_capacity(torch.cat(received, dim=1).t(), len(qkv)).t() if score else None
    context = torch.cat(contexts)
    context = context if units is None else rounded(context, units).to(EIGHT)
    return with_capacity(context, len(qkv)), scores


def _check_places(score_queries: int, positions: Tensor | None) -> None:
    if score_queries != 1 and positions is None:
        raise ValueError(f"score_queries = {score_queries} goes by original positions; give positions")


def _tile_widths(max_length: int, whole: int, *, split: bool) -> list[tuple[int, int]]:
    """The launches for runs that fit in one tile: (longer than, up to) so many tokens. Code for short runs takes
    registers from code for long ones in the same launch; `split` keeps them apart.
    """
    edges = (0, 64, 128) if split else (0, 128)
    widest = min(whole, power_of_two(max_length, least=32))
    ends = [edge for edge in edges if edge < widest] + [widest]
    return list(pairwise(ends))


@jit
def _whole_run(
    context,  # (capacity, heads x WIDTH), from this head on; the others likewise
    units,  # (heads x WIDTH,) float32, or None
    received,  # (capacity,) or None
    queries,
    keys,
    values,
    start,
    length,
    scale,
    bias,
    bias_row,
    positions,
    of_queries,  # (capacity, DISTANCES), or None, as the other one
    of_keys,
    index,
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
    BY_VALUE: tl.constexpr,
    EVERY: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    key_offsets = tl.arange(0, KEYS)
    key_rows = start + key_offsets
    key_live = key_offsets < length
    key = tile(keys, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
    value = tile(values, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
    if BY_VALUE:
        # Kept where the columns will be: in registers until then, the tiles of longer runs would spill.
        tl.store(received + key_rows, lengths_of(value), mask=key_live)
        tl.debug_barrier()
    columns = tl.zeros((KEYS,), tl.float32)
    for first in range(0, length, QUERIES):
        offsets = first + tl.arange(0, QUERIES)
        rows = start + offsets
        live = offsets < length
        query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions,
                           of_queries, of_keys, index, DISTANCES, WINDOW)  # fmt: skip
        weights = tl.exp2(logits - tl.max(logits, 1)[:, None])
        normaliser = 1.0 / tl.sum(weights, 1)
        if received is not None:
            counted = live
            if EVERY != 1:
                counted = asks(positions, rows, live, EVERY)
            columns += tl.sum(weights * tl.where(counted, normaliser, 0.0)[:, None], 0)
        attended = dot(weights.to(value.dtype), value, tl.zeros((QUERIES, TILE_WIDTH), tl.float32))
        store_context(context, rows, live, attended * normaliser[:, None], units, ROW // 3, WIDTH, TILE_WIDTH)
    if received is not None:
        if BY_VALUE:
            columns *= tl.load(received + key_rows, mask=key_live, other=0.0)
            tl.debug_barrier()  # no thread stores before all have loaded
        tl.store(received + key_rows, columns, mask=key_live)


@jit
def _whole_runs(
    context,  # (capacity, HEADS x WIDTH)
    units,  # (HEADS x WIDTH,) float32, or None
    received,  # (HEADS, capacity) float32, or None
    qkv,  # (capacity, 3 x HEADS x WIDTH)
    cu_seqlens,  # (sequences + 1,) int32
    capacity,
    scale,
    bias,  # (reach, HEADS) float32 from zero distance on (rows before it are valid, too), or None
    bias_row,
    bias_head,
    positions,  # (capacity,) int32, or None
    of_queries,  # (HEADS, capacity, DISTANCES), or None
    of_keys,  # the same
    index,  # (positions,) int32 from zero distance on (rows before it are valid, too), or None
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
    BY_VALUE: tl.constexpr,
    EVERY: tl.constexpr,
    LONGER_THAN: tl.constexpr,
    WIDEST: tl.constexpr,
    QUERIES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run and head; the tile fits the run, because most runs are far shorter than the longest."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if (length <= LONGER_THAN) | (length > WIDEST):
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    keys = queries + HEADS * WIDTH
    values = keys + HEADS * WIDTH
    context += head * WIDTH
    if units is not None:
        units += head * WIDTH
    if received is not None:
        received += head * capacity
    if bias is not None:
        bias += head * bias_head
    if of_queries is not None:
        of_queries += head.to(tl.int64) * capacity * DISTANCES
    if of_keys is not None:
        of_keys += head.to(tl.int64) * capacity * DISTANCES
    for power in tl.static_range(5, 9):  # the tightest of 32 to 256 keys
        if (2**power > LONGER_THAN) & (2**power <= WIDEST):
            if (length <= 2**power) & ((length > 2**power // 2) | (power == 5)):
                _whole_run(context, units, received, queries, keys, values, start, length, scale, bias, bias_row,
                           positions, of_queries, of_keys, index, ROW, WIDTH, TILE_WIDTH, DISTANCES, WINDOW, BY_VALUE,
                           EVERY, min(2**power, QUERIES), 2**power)  # fmt: skip
