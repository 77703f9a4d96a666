"""Attention of runs whose keys do not fit in one tile: a pass with a running maximum, and one over the columns.

Where not every query's attention counts, a list of those that do comes first, and the columns are added up over it.
"""
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from thresher.engine.kernels.counted import counted_rows
from thresher.engine.kernels.logits import lengths_of, logits_of, store_context, tile
from thresher.engine.kernels.tiles import Rung, fitting, shared_memory
from thresher.engine.kernels.toolchain import begin, blocks, descriptor, dot, jit, launching, tl

IN_ORDER = 4  # blocks of a long run that one program may have to take
FIRST_QUERIES = 16  # of a tile where the first token's attention alone counts: the fewest that a product has


def attend_long_runs(
    rungs: Sequence[Rung],
    shared: dict[str, Any],
    *,
    context: Tensor,
    units: Tensor | None,
    received: Tensor | None,
    by_value: bool,
    score_queries: int,
    positions: Tensor | None,
    max_length: int,
    typical: int | None,
) -> None:
    """Writes the context (capacity, width) and, if it is given, received (heads, capacity) of all runs that are longer
    than the first rung says. shared: the arguments that all kernels of attention take; the others as attention has
    them. attention_reference is the twin."""
    qkv, cu_seqlens = shared["qkv"], shared["cu_seqlens"]
    programs, width = (len(cu_seqlens) - 1) * shared["HEADS"], shared["WIDTH"]
    row, room = shared["TILE_WIDTH"] * qkv.element_size(), shared_memory(qkv.device)
    log_sum_exp = None if received is None else torch.empty_like(received)
    chosen, up_to = None, None
    if received is not None and score_queries != 1 and positions is not None:
        chosen, up_to = counted_rows(positions, cu_seqlens, score_queries=score_queries, short=rungs[0].longer_than)
    for rung, above in zip_longest(rungs, rungs[1:]):
        if max_length <= rung.longer_than:
            break
        widest = None if above is None else above.longer_than
        longest = min(max_length, widest or max_length)
        sizes = {"LONGER_THAN": rung.longer_than, "WIDEST": widest}
        tiles = fitting(rung.plain, held=rung.plain.queries, streamed=2 * rung.plain.keys, row=row, room=room)
        described = tiles.described and width == shared["TILE_WIDTH"]
        most, side_by_side = blocks(longest, tiles.queries), _side_by_side(longest, typical, tiles.queries)
        long_runs[(programs, side_by_side)](
            context=context,
            units=units,
            log_sum_exp=log_sum_exp,
            tiles=descriptor(qkv, (tiles.keys, width)) if described else None,
            **shared,
            **sizes,
            IN_TURNS=side_by_side < most,
            QUERIES=tiles.queries,
            KEYS=tiles.keys,
            **launching(qkv, **tiles.options()),
        )
        if received is None:
            continue
        tiles = rung.columns if chosen is None else rung.listed
        if score_queries == 0:
            tiles = replace(tiles, queries=FIRST_QUERIES)
        tiles = fitting(tiles, held=tiles.keys, streamed=tiles.queries, row=row, room=room)
        described = tiles.described and width == shared["TILE_WIDTH"]
        most, side_by_side = blocks(longest, tiles.keys), _side_by_side(longest, typical, tiles.keys)
        received_in_long_runs[(programs, side_by_side)](
            received=received,
            log_sum_exp=log_sum_exp,
            chosen=chosen,
            up_to=up_to,
            tiles=descriptor(qkv, (tiles.queries, width)) if described else None,
            **shared,
            **sizes,
            BY_VALUE=by_value,
            KEYS_AS_ROWS=tiles.keys_as_rows,
            IN_TURNS=side_by_side < most,
            QUERIES=tiles.queries,
            KEYS=tiles.keys,
            **launching(qkv, **tiles.options()),
        )


def _side_by_side(longest: int, typical: int | None, rows: int) -> int:
    """Programs of a run. One that finds nothing to do still takes its turn: where runs have become short, one for every
    block of the longest would take longer than the work. So those of a run that is longer than most take a few."""
    most = blocks(longest, rows)
    return most if typical is None else max(blocks(min(longest, 2 * typical), rows), -(-most // IN_ORDER))


@jit
def _attend(logits, scale, value, peak, total, attended):
    """The running sums with one more tile of keys; logits (queries, keys) to base 2, once they are scaled."""
    # Here, because one instruction multiplies and subtracts.
    higher = tl.maximum(peak, tl.max(logits, 1) * scale)
    weights = tl.exp2(logits * scale - higher[:, None])
    shrink = tl.exp2(peak - higher)
    total = total * shrink + tl.sum(weights, 1)
    attended = dot(weights.to(value.dtype), value, attended * shrink[:, None])
    return higher, total, attended


@jit
def long_runs(
    context,  # (capacity, HEADS x WIDTH)
    units,  # (HEADS x WIDTH,) float32, or None
    log_sum_exp,  # (HEADS, capacity) float32 to base 2, or None
    tiles,  # qkv as tiles of (KEYS, WIDTH), or None
    qkv,
    cu_seqlens,
    capacity,
    scale,
    bias,
    bias_row,
    bias_head,
    positions,  # or None: nothing goes by places
    of_queries,
    of_keys,
    index,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
    LONGER_THAN: tl.constexpr,
    WIDEST: tl.constexpr,  # or None: no run is too long
    IN_TURNS: tl.constexpr,  # programs take more than one block each
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Programs per run and head share its blocks of queries."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first = tl.program_id(1) * QUERIES
    if _is_elsewhere(length, first, LONGER_THAN, WIDEST):
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    keys = queries + HEADS * WIDTH
    values = keys + HEADS * WIDTH
    if bias is not None:
        bias += head * bias_head
    if of_queries is not None:
        of_queries += head.to(tl.int64) * capacity * DISTANCES
    if of_keys is not None:
        of_keys += head.to(tl.int64) * capacity * DISTANCES
    if units is not None:
        units += head * WIDTH
    if log_sum_exp is not None:
        log_sum_exp += head * capacity
    turns = 1  # a loop would take registers
    if IN_TURNS:
        turns = tl.cdiv(length - first, tl.num_programs(1) * QUERIES)
    for turn in range(0, turns):
        first_query = first + turn * tl.num_programs(1) * QUERIES
        offsets = first_query + tl.arange(0, QUERIES)
        rows = start + offsets
        live = offsets < length
        query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
        low, high = 0, length
        # Positions rise by one at least, so no key in a window is farther away in rows than in positions. A block of
        # keys may have none in a query's window: the peak is finite from the beginning there.
        lowest: tl.constexpr = float("-inf") if WINDOW is None else -1e30
        if WINDOW is not None:
            low = tl.maximum(first_query - WINDOW, 0)
            high = tl.minimum(first_query + QUERIES + WINDOW, length)
        peak = tl.full((QUERIES,), lowest, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        attended = tl.zeros((QUERIES, TILE_WIDTH), tl.float32)
        # What lies behind a run may be anything, and zero times that is no zero: a tile that the run does not fill
        # goes through pointers, with a mask. Where nothing goes by places it is the last; a loop for it would take
        # registers.
        if positions is None:
            full = length // KEYS * KEYS
            for first_key in range(0, full, KEYS):
                if tiles is not None:
                    key = tiles.load([start + first_key, (HEADS + head) * WIDTH])
                    value = tiles.load([start + first_key, (2 * HEADS + head) * WIDTH])
                else:
                    key_rows = start + first_key + tl.arange(0, KEYS)
                    key = tile(keys, key_rows, None, ROW, WIDTH, TILE_WIDTH)
                    value = tile(values, key_rows, None, ROW, WIDTH, TILE_WIDTH)
                logits = dot(query, tl.trans(key), tl.zeros((QUERIES, KEYS), tl.float32))
                peak, total, attended = _attend(logits, scale, value, peak, total, attended)
            if full < length:
                key_live = full + tl.arange(0, KEYS) < length
                key_rows = start + full + tl.arange(0, KEYS)
                key = tile(keys, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
                value = tile(values, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
                logits = dot(query, tl.trans(key), tl.zeros((QUERIES, KEYS), tl.float32))
                logits = tl.where(key_live[None, :], logits, float("-inf"))
                peak, total, attended = _attend(logits, scale, value, peak, total, attended)
        else:
            for first_key in range(low, high, KEYS):
                key_offsets = first_key + tl.arange(0, KEYS)
                key_rows = start + key_offsets
                key_live = key_offsets < length
                key = tile(keys, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
                value = tile(values, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
                logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions,
                                   of_queries, of_keys, index, DISTANCES, WINDOW)  # fmt: skip
                peak, total, attended = _attend(logits, 1.0, value, peak, total, attended)
        store_context(context + head * WIDTH, rows, live, attended / total[:, None], units, ROW // 3, WIDTH, TILE_WIDTH)
        if log_sum_exp is not None:
            tl.store(log_sum_exp + rows, peak + tl.log2(total), mask=live)


@jit
def _is_elsewhere(length, first, LONGER_THAN: tl.constexpr, WIDEST: tl.constexpr):
    """Whether a program has no run of this launch, or nothing of it."""
    elsewhere = (length <= LONGER_THAN) | (first >= length)
    if WIDEST is not None:
        elsewhere |= length > WIDEST
    return elsewhere


@jit
def _receive(
    sums, query, rows, live, key, key_rows, key_live, normaliser, scale, bias, bias_row, positions,
    of_queries, of_keys, index, DISTANCES: tl.constexpr, WINDOW: tl.constexpr, KEYS_AS_ROWS: tl.constexpr,
):  # fmt: skip
    """The columns with what some more queries give."""
    if KEYS_AS_ROWS:
        logits = dot(key, tl.trans(query), tl.zeros((key.shape[0], query.shape[0]), tl.float32))
        sums += tl.sum(tl.exp2(logits * scale - normaliser[None, :]), 1)
    elif positions is None:
        logits = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
        sums += tl.exp2(logits * scale - normaliser[:, None])
    else:
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions,
                           of_queries, of_keys, index, DISTANCES, WINDOW)  # fmt: skip
        sums += tl.exp2(logits - normaliser[:, None])
    return sums


@jit
def received_in_long_runs(
    received,  # (HEADS, capacity) float32
    log_sum_exp,  # (HEADS, capacity) float32 to base 2
    chosen,  # what `counted_rows` gives, or None: all queries count
    up_to,
    tiles,  # qkv as tiles of (QUERIES, WIDTH), or None
    qkv,
    cu_seqlens,
    capacity,
    scale,
    bias,
    bias_row,
    bias_head,
    positions,  # or None: nothing goes by places
    of_queries,
    of_keys,
    index,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
    BY_VALUE: tl.constexpr,
    KEYS_AS_ROWS: tl.constexpr,  # nothing goes by places then
    LONGER_THAN: tl.constexpr,
    WIDEST: tl.constexpr,
    IN_TURNS: tl.constexpr,  # programs take more than one block each
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Programs per run and head share its blocks of keys: each adds up their columns, queries in order."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first = tl.program_id(1) * KEYS
    if _is_elsewhere(length, first, LONGER_THAN, WIDEST):
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    log_sum_exp += head * capacity
    if bias is not None:
        bias += head * bias_head
    if of_queries is not None:
        of_queries += head.to(tl.int64) * capacity * DISTANCES
    if of_keys is not None:
        of_keys += head.to(tl.int64) * capacity * DISTANCES
    received += head * capacity
    turns = 1
    if IN_TURNS:
        turns = tl.cdiv(length - first, tl.num_programs(1) * KEYS)
    for turn in range(0, turns):
        first_key = first + turn * tl.num_programs(1) * KEYS
        key_offsets = first_key + tl.arange(0, KEYS)
        key_rows = start + key_offsets
        key_live = key_offsets < length
        key = tile(queries + HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
        if BY_VALUE:  # before the sums take their registers
            lengths = lengths_of(tile(queries + 2 * HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH))
        if KEYS_AS_ROWS:
            sums = tl.zeros((KEYS,), tl.float32)
        else:  # added up across threads once, at the end: that takes longer than a tile's exponentials
            sums = tl.zeros((QUERIES, KEYS), tl.float32)
        low, high = 0, length
        if WINDOW is not None:
            low = tl.maximum(first_key - WINDOW, 0)
            high = tl.minimum(first_key + KEYS + WINDOW, length)
        if chosen is not None:  # the same range, in the list
            if WINDOW is not None:
                low = tl.load(up_to + start + low - 1, mask=low > 0, other=0)
            high = tl.load(up_to + start + high - 1)
        elif positions is None:  # tiles full of queries need no mask
            low = length // QUERIES * QUERIES
            for first_query in range(0, low, QUERIES):
                rows = start + first_query + tl.arange(0, QUERIES)
                if tiles is not None:
                    query = tiles.load([start + first_query, head * WIDTH])
                else:
                    query = tile(queries, rows, None, ROW, WIDTH, TILE_WIDTH)
                normaliser = tl.load(log_sum_exp + rows)
                sums = _receive(sums, query, None, None, key, key_rows, key_live, normaliser, scale, bias, bias_row,
                                positions, of_queries, of_keys, index, DISTANCES, WINDOW, KEYS_AS_ROWS)  # fmt: skip
        for first_query in range(low, high, QUERIES):
            offsets = first_query + tl.arange(0, QUERIES)
            rows = start + offsets
            live = offsets < high
            if chosen is not None:
                rows = tl.load(chosen + rows, mask=live, other=0)
            query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
            # An infinite log-sum-exp gives a query that is not there no weight.
            normaliser = tl.load(log_sum_exp + rows, mask=live, other=float("inf"))
            sums = _receive(sums, query, rows, live, key, key_rows, key_live, normaliser, scale, bias, bias_row,
                            positions, of_queries, of_keys, index, DISTANCES, WINDOW, KEYS_AS_ROWS)  # fmt: skip
        if KEYS_AS_ROWS:
            columns = sums
        else:
            columns = tl.sum(sums, 0)
        if BY_VALUE:
            columns *= lengths
        tl.store(received + key_rows, columns, mask=key_live)
