"""Attention inside each run of a packed batch, and how much of it every token receives, without atomics.

A run of up to 256 tokens is one program per head: all its keys are in one tile, so the column sums of the probabilities
cost little. Longer runs take the usual pass with a running maximum, which stores each query's log-sum-exp, and a second
pass per block of keys that recomputes the logits (not the context) to add up the columns. Which of the two is taken
depends on the run's own length alone, so what is computed here for a text never depends on the texts in its batch. For
scores by value, columns are multiplied by the lengths of the keys' value vectors before they are stored. The first of
the two passes is the library's where that is faster, see library.py.
"""
# mypy: disable-error-code="no-untyped-def"

import math
from itertools import pairwise

import torch
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.kernels import library
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    dot,
    jit,
    launching,
    power_of_two,
    require_contiguous,
    tl,
    with_capacity,
)

WHOLE = 256  # tokens of the longest run whose keys fit in one tile
QUERIES = 64  # of a run, at once
# Most runs are short: with 128 registers a thread, four programs share a processor, and the longer ones spill a few.
WHOLE_TILES = {"num_warps": 4, "num_stages": 1, "maxnreg": 128}
WIDE_TILES = {"num_warps": 4, "num_stages": 1}  # more than 128 keys
LONG_TILES = {"QUERIES": 128, "KEYS": 64, "num_warps": 8, "num_stages": 2}
RECEIVED_TILES = {"QUERIES": 64, "KEYS": 64, "num_warps": 4, "num_stages": 3}
LOG2_E = tl.constexpr(math.log2(math.e))  # exponentials are taken to base 2, the GPU's own


def attention(
    qkv: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    max_length: int,
    score: str | None,
    positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    mostly_long: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The context (capacity, width) and, with a score, what tokens received by head (heads, capacity) in float32.

    qkv: (capacity, 3 x width), all queries, all keys, all values, heads inside; cu_seqlens: (sequences + 1,) int32,
    empty runs allowed; max_length: no run is longer. With distance_bias (2 x reach - 1, heads) float32, added to the
    logits by key minus query position, positions: (capacity,) int32. score: "attention", "value" (attention times the
    length of the token's value vector in this head), or None. Heads are put together by prune, in a fixed order.
    mostly_long says that most runs have more than 64 tokens, which changes the time but no result.
    """
    require_contiguous(qkv=qkv, cu_seqlens=cu_seqlens, positions=positions)
    width = qkv.shape[1] // 3
    programs = (len(cu_seqlens) - 1) * heads
    received = qkv.new_empty(heads, len(qkv), dtype=torch.float32) if score else None
    shared = {
        "qkv": qkv,
        "cu_seqlens": cu_seqlens,
        "capacity": len(qkv),
        "scale": math.log2(math.e) / math.sqrt(width // heads),
        **bias_arguments(distance_bias, positions),
        "HEADS": heads,
        "WIDTH": width // heads,
        "TILE_WIDTH": power_of_two(width // heads, least=16),
    }
    scored = {**shared, "received": received, "BY_VALUE": score == "value"}
    by_library = max_length > WHOLE and library.is_faster(qkv, heads=heads, biased=distance_bias is not None)
    log_sum_exp: Tensor | None = None
    if by_library:  # first, because it makes the context itself
        context, log_sum_exp = library.attend_long(qkv, cu_seqlens, heads=heads, max_length=max_length, short=WHOLE)
    else:
        context = qkv.new_empty(len(qkv), width)
    for longer_than, widest in _rungs(max_length, split=received is not None and mostly_long):
        tiles = WHOLE_TILES if widest <= 128 else WIDE_TILES
        _whole_runs[(programs,)](
            context=context,
            **scored,
            LONGER_THAN=longer_than,
            WIDEST=widest,
            QUERIES=QUERIES,
            **launching(qkv, **tiles),
        )
    if max_length > WHOLE and not by_library:
        if score:
            log_sum_exp = qkv.new_empty(heads, len(qkv), dtype=torch.float32)
        grid = (programs, blocks(max_length, LONG_TILES["QUERIES"]))
        _long_runs[grid](
            context=context, log_sum_exp=log_sum_exp, **shared, SHORT=WHOLE, **launching(qkv, **LONG_TILES)
        )
    if max_length > WHOLE and received is not None:
        grid = (programs, blocks(max_length, RECEIVED_TILES["KEYS"]))
        _received_in_long_runs[grid](
            log_sum_exp=log_sum_exp,
            **scored,
            NATURAL=by_library,
            SHORT=WHOLE,
            **launching(qkv, **RECEIVED_TILES),
        )
    return context, received


def attention_reference(
    qkv: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    max_length: int,
    score: str | None,
    positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    mostly_long: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same, one run at a time."""
    width, starts, contexts, received = qkv.shape[1] // 3, cu_seqlens.tolist(), [], []
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        parts = qkv[start:end].chunk(3, dim=-1)
        query, key, value = (part.view(end - start, heads, width // heads).transpose(0, 1) for part in parts)
        logits = at_least_float32(query) @ at_least_float32(key).transpose(1, 2) / math.sqrt(query.shape[-1])
        if distance_bias is not None and positions is not None:
            at = positions[start:end].long()
            bias = distance_bias[at[None, :] - at[:, None] + len(distance_bias) // 2]  # (queries, keys, heads)
            logits = logits + bias.permute(2, 0, 1)
        probabilities = torch.softmax(logits, dim=-1)  # (heads, queries, keys)
        contexts.append((probabilities.to(value.dtype) @ value).transpose(0, 1).flatten(1))
        columns = probabilities.sum(dim=1)
        received.append(columns * at_least_float32(value).norm(dim=-1) if score == "value" else columns)
    scores = with_capacity(torch.cat(received, dim=1).t(), len(qkv)).t() if score else None
    return with_capacity(torch.cat(contexts), len(qkv)), scores


def _rungs(max_length: int, *, split: bool) -> list[tuple[int, int]]:
    """The launches for runs that fit in one tile: (longer than, up to) so many tokens. Code for short runs takes
    registers from code for long ones in the same launch; `split` keeps them apart.
    """
    edges = (0, 64, 128, WHOLE) if split else (0, 128, WHOLE)
    widest = min(WHOLE, power_of_two(max_length, least=32))
    ends = [edge for edge in edges if edge < widest] + [widest]
    return list(pairwise(ends))


def bias_arguments(distance_bias: Tensor | None, positions: Tensor | None) -> dict[str, object]:
    """The kernels' arguments for a bias by distance: the table from its zero distance on, and who is where."""
    if distance_bias is None:
        return {"bias": None, "bias_row": 0, "bias_head": 0, "positions": None}
    row, head = distance_bias.stride()
    return {
        "bias": distance_bias[len(distance_bias) // 2 :],
        "bias_row": row,
        "bias_head": head,
        "positions": positions,
    }


@jit
def tile(part, rows, live, ROW: tl.constexpr, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr):
    """(rows, TILE_WIDTH) of one head's queries, keys or values; zeros where there is nothing."""
    columns = tl.arange(0, TILE_WIDTH)
    mask = live[:, None] & (columns < WIDTH)[None, :]
    return tl.load(part + rows.to(tl.int64)[:, None] * ROW + columns[None, :], mask=mask, other=0.0)


@jit
def logits_of(query, query_rows, query_live, key, key_rows, key_live, scale, bias, bias_row, positions):
    """(queries, keys) to base 2, minus infinity where there is no key."""
    sums = tl.zeros((query.shape[0], key.shape[0]), tl.float32)
    logits = dot(query, tl.trans(key), sums) * scale
    if bias is not None:
        at = tl.load(positions + query_rows, mask=query_live, other=0)
        of = tl.load(positions + key_rows, mask=key_live, other=0)
        logits += tl.load(bias + (of[None, :] - at[:, None]) * bias_row) * LOG2_E
    return tl.where(key_live[None, :], logits, float("-inf"))


@jit
def lengths_of(vectors):
    """(rows,) in float32, of (rows, width) in any precision."""
    exact = vectors.to(tl.float32)
    return tl.sqrt_rn(tl.sum(exact * exact, 1))


@jit
def _whole_run(
    context,  # (capacity, heads x WIDTH), from this head on; the others likewise
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
    ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    BY_VALUE: tl.constexpr,
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
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions)
        weights = tl.exp2(logits - tl.max(logits, 1)[:, None])
        normaliser = 1.0 / tl.sum(weights, 1)
        if received is not None:
            columns += tl.sum(weights * tl.where(live, normaliser, 0.0)[:, None], 0)
        attended = dot(weights.to(value.dtype), value, tl.zeros((QUERIES, TILE_WIDTH), tl.float32))
        _store_context(context, rows, live, attended * normaliser[:, None], ROW // 3, WIDTH, TILE_WIDTH)
    if received is not None:
        if BY_VALUE:
            columns *= tl.load(received + key_rows, mask=key_live, other=0.0)
            tl.debug_barrier()  # no thread stores before all have loaded
        tl.store(received + key_rows, columns, mask=key_live)


@jit
def _store_context(context, rows, live, tile_values, ROW: tl.constexpr, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr):
    columns = tl.arange(0, TILE_WIDTH)
    mask = live[:, None] & (columns < WIDTH)[None, :]
    at = context + rows.to(tl.int64)[:, None] * ROW + columns[None, :]
    tl.store(at, tile_values.to(context.dtype.element_ty), mask=mask)


@jit
def _whole_runs(
    context,  # (capacity, HEADS x WIDTH)
    received,  # (HEADS, capacity) float32, or None
    qkv,  # (capacity, 3 x HEADS x WIDTH)
    cu_seqlens,  # (sequences + 1,) int32
    capacity,
    scale,
    bias,  # (reach, HEADS) float32 from zero distance on (rows before it are valid, too), or None
    bias_row,
    bias_head,
    positions,  # (capacity,) int32, or None
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    BY_VALUE: tl.constexpr,
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
    if received is not None:
        received += head * capacity
    if bias is not None:
        bias += head * bias_head
    for power in tl.static_range(5, 9):  # the tightest of 32 to 256 keys
        if (2**power > LONGER_THAN) & (2**power <= WIDEST):
            if (length <= 2**power) & ((length > 2**power // 2) | (power == 5)):
                _whole_run(context, received, queries, keys, values, start, length, scale, bias, bias_row, positions,
                           ROW, WIDTH, TILE_WIDTH, BY_VALUE, min(2**power, QUERIES), 2**power)  # fmt: skip


@jit
def _long_runs(
    context,  # (capacity, HEADS x WIDTH)
    log_sum_exp,  # (HEADS, capacity) float32 to base 2, or None
    qkv,
    cu_seqlens,
    capacity,
    scale,
    bias,
    bias_row,
    bias_head,
    positions,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    SHORT: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run, head and block of queries."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first_query = tl.program_id(1) * QUERIES
    if (length <= SHORT) | (first_query >= length):
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    keys = queries + HEADS * WIDTH
    values = keys + HEADS * WIDTH
    if bias is not None:
        bias += head * bias_head
    offsets = first_query + tl.arange(0, QUERIES)
    rows = start + offsets
    live = offsets < length
    query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, TILE_WIDTH), tl.float32)
    for first_key in range(0, length, KEYS):
        key_offsets = first_key + tl.arange(0, KEYS)
        key_rows = start + key_offsets
        key_live = key_offsets < length
        key = tile(keys, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
        value = tile(values, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions)
        higher = tl.maximum(peak, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        attended = dot(weights.to(value.dtype), value, attended * shrink[:, None])
        peak = higher
    _store_context(context + head * WIDTH, rows, live, attended / total[:, None], ROW // 3, WIDTH, TILE_WIDTH)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + head * capacity + rows, peak + tl.log2(total), mask=live)


@jit
def _received_in_long_runs(
    received,  # (HEADS, capacity) float32
    log_sum_exp,  # (HEADS, capacity) float32 to base 2, or NATURAL
    qkv,
    cu_seqlens,
    capacity,
    scale,
    bias,
    bias_row,
    bias_head,
    positions,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    BY_VALUE: tl.constexpr,
    NATURAL: tl.constexpr,
    SHORT: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run, head and block of keys: adds up their columns, queries in order."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first_key = tl.program_id(1) * KEYS
    if (length <= SHORT) | (first_key >= length):
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    if bias is not None:
        bias += head * bias_head
    key_offsets = first_key + tl.arange(0, KEYS)
    key_rows = start + key_offsets
    key_live = key_offsets < length
    key = tile(queries + HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
    # Added up across threads once, at the end: that takes longer than a tile's exponentials.
    partial = tl.zeros((QUERIES, KEYS), tl.float32)
    for first_query in range(0, length, QUERIES):
        offsets = first_query + tl.arange(0, QUERIES)
        rows = start + offsets
        live = offsets < length
        query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions)
        # An infinite log-sum-exp gives a query that is not there no weight.
        normaliser = tl.load(log_sum_exp + head * capacity + rows, mask=live, other=float("inf"))
        if NATURAL:
            normaliser *= LOG2_E
        partial += tl.exp2(logits - normaliser[:, None])
    columns = tl.sum(partial, 0)
    if BY_VALUE:
        columns *= lengths_of(tile(queries + 2 * HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH))
    tl.store(received + head * capacity + key_rows, columns, mask=key_live)
