"""Kernels that attention_study.py tries: the engine's attention in other forms, every difference a constant.

Forward: loads by pointers or descriptors, full tiles without a mask, the scale inside the exponential's own
multiplication, exponentials two at a time in half precision, sums by the matrix units.
Columns (what keys receive): keys or queries as rows of a tile, all queries or listed ones, sums by the matrix units.
"""
# mypy: disable-error-code="no-untyped-def"

from thresher.engine.kernels.logits import store_context, tile
from thresher.engine.kernels.toolchain import INTERPRETED, begin, dot, jit, tl


@jit
def powers(exponents, HALF: tl.constexpr):
    """2 to the power of (rows, columns) float32, in float32 or rounded to float16."""
    if HALF and not INTERPRETED:
        result = tl.inline_asm_elementwise(
            "{ .reg .b32 both; cvt.rn.f16x2.f32 both, $2, $1; ex2.approx.f16x2 $0, both; }",
            "=r,r,r",
            [exponents],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    elif HALF:
        result = tl.exp2(exponents).to(tl.float16)
    else:
        result = tl.exp2(exponents)
    return result


@jit
def step(query, key, value, key_live, peak, total, attended, scale, HALF: tl.constexpr, TENSOR_SUMS: tl.constexpr):
    """Attention's running sums with one more tile of keys; key_live is None where all are there."""
    products = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
    if key_live is not None:
        products = tl.where(key_live[None, :], products, float("-inf"))
    higher = tl.maximum(peak, tl.max(products, 1) * scale)
    weights = powers(products * scale - higher[:, None], HALF)
    shrink = tl.exp2(peak - higher)
    halves = weights.to(value.dtype)
    if TENSOR_SUMS:  # 16 equal columns of sums: the narrowest that a matrix product has
        ones = tl.full((key.shape[0], 16), 1.0, value.dtype)
        total = dot(halves, ones, total * shrink[:, None])
    else:
        total = total * shrink + tl.sum(weights.to(tl.float32), 1)
    attended = dot(halves, value, attended * shrink[:, None])
    return higher, total, attended


@jit
def forward(
    context,  # (capacity, HEADS x WIDTH)
    log_sum_exp,  # (HEADS, capacity) float32 to base 2, or None
    qkv,  # (capacity, 3 x HEADS x WIDTH)
    tiles,  # the same as tiles of (KEYS, WIDTH), or None
    cu_seqlens,  # (sequences + 1,) int32
    capacity,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    HALF: tl.constexpr,
    TENSOR_SUMS: tl.constexpr,
    BLOCKS_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run, head and block of queries."""
    begin(EARLY)
    if BLOCKS_FIRST:
        block, pair = tl.program_id(0), tl.program_id(1)
    else:
        pair, block = tl.program_id(0), tl.program_id(1)
    sequence, head = pair // HEADS, pair % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first_query = block * QUERIES
    if first_query >= length:
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    keys = queries + HEADS * WIDTH
    values = keys + HEADS * WIDTH
    offsets = first_query + tl.arange(0, QUERIES)
    rows = start + offsets
    live = offsets < length
    query = tile(queries, rows, live, ROW, WIDTH, WIDTH)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES, 16), tl.float32) if TENSOR_SUMS else tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, WIDTH), tl.float32)
    full = length // KEYS * KEYS
    columns = tl.arange(0, WIDTH)
    for first_key in tl.range(0, full, KEYS, num_stages=STAGES):
        if tiles is not None:
            key = tiles.load([start + first_key, HEADS * WIDTH + head * WIDTH])
            value = tiles.load([start + first_key, 2 * HEADS * WIDTH + head * WIDTH])
        else:
            at = (start + first_key + tl.arange(0, KEYS)).to(tl.int64)[:, None] * ROW + columns[None, :]
            key = tl.load(keys + at)
            value = tl.load(values + at)
        peak, total, attended = step(query, key, value, None, peak, total, attended, scale, HALF, TENSOR_SUMS)
    if full < length:  # through pointers: what lies behind the run may be anything, and zero times that is no zero
        key_offsets = full + tl.arange(0, KEYS)
        key_live = key_offsets < length
        key = tile(keys, start + key_offsets, key_live, ROW, WIDTH, WIDTH)
        value = tile(values, start + key_offsets, key_live, ROW, WIDTH, WIDTH)
        peak, total, attended = step(query, key, value, key_live, peak, total, attended, scale, HALF, TENSOR_SUMS)
    if TENSOR_SUMS:
        sums = tl.max(total, 1)
    else:
        sums = total
    store_context(context + head * WIDTH, rows, live, attended / sums[:, None], None, ROW // 3, WIDTH, WIDTH)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + head * capacity + rows, peak + tl.log2(sums), mask=live)


@jit
def columns(
    received,  # (HEADS, capacity) float32
    log_sum_exp,  # (HEADS, capacity) float32 to base 2
    qkv,  # (capacity, 3 x HEADS x WIDTH)
    tiles,  # the same as tiles of (QUERIES, WIDTH), or None
    cu_seqlens,
    chosen,  # (capacity,) int32: from a run's start on, the rows of its queries that count; or None: all do
    counts,  # (sequences,) int32, how many they are; or None
    capacity,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    HALF: tl.constexpr,
    KEYS_AS_ROWS: tl.constexpr,
    TENSOR_SUMS: tl.constexpr,  # with keys as rows only
    BLOCKS_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run, head and block of keys: adds up their columns, queries in order."""
    begin(EARLY)
    if BLOCKS_FIRST:
        block, pair = tl.program_id(0), tl.program_id(1)
    else:
        pair, block = tl.program_id(0), tl.program_id(1)
    sequence, head = pair // HEADS, pair % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first_key = block * KEYS
    if first_key >= length:
        return
    asked = tl.load(counts + sequence) if counts is not None else length
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    queries = qkv + head * WIDTH
    log_sum_exp += head * capacity
    key_offsets = first_key + tl.arange(0, KEYS)
    key_live = key_offsets < length
    key = tile(queries + HEADS * WIDTH, start + key_offsets, key_live, ROW, WIDTH, WIDTH)
    if TENSOR_SUMS:
        sums = tl.zeros((KEYS, 16), tl.float32)
    elif KEYS_AS_ROWS:
        sums = tl.zeros((KEYS,), tl.float32)
    else:
        sums = tl.zeros((QUERIES, KEYS), tl.float32)
    full = 0
    if tiles is not None:
        full = asked // QUERIES * QUERIES
        for first in tl.range(0, full, QUERIES, num_stages=STAGES):
            query = tiles.load([start + first, head * WIDTH])
            normaliser = tl.load(log_sum_exp + start + first + tl.arange(0, QUERIES))
            sums = more(sums, query, key, normaliser, scale, HALF, KEYS_AS_ROWS, TENSOR_SUMS)
    for first in tl.range(full, asked, QUERIES, num_stages=STAGES):
        offsets = first + tl.arange(0, QUERIES)
        live = offsets < asked
        rows = start + offsets
        if chosen is not None:
            rows = tl.load(chosen + rows, mask=live, other=0)
        query = tile(queries, rows, live, ROW, WIDTH, WIDTH)
        # An infinite log-sum-exp gives a query that is not there no weight.
        normaliser = tl.load(log_sum_exp + rows, mask=live, other=float("inf"))
        sums = more(sums, query, key, normaliser, scale, HALF, KEYS_AS_ROWS, TENSOR_SUMS)
    if TENSOR_SUMS:
        found = tl.max(sums, 1)  # all of its columns are equal
    elif KEYS_AS_ROWS:
        found = sums
    else:
        found = tl.sum(sums, 0)
    tl.store(received + head * capacity + start + key_offsets, found, mask=key_live)


@jit
def more(
    sums, query, key, normaliser, scale, HALF: tl.constexpr, KEYS_AS_ROWS: tl.constexpr, TENSOR_SUMS: tl.constexpr
):
    """The columns with what some more queries give."""
    if KEYS_AS_ROWS:
        products = dot(key, tl.trans(query), tl.zeros((key.shape[0], query.shape[0]), tl.float32))
        weights = powers(products * scale - normaliser[None, :], HALF)
        if TENSOR_SUMS:
            sums = dot(weights.to(query.dtype), tl.full((query.shape[0], 16), 1.0, query.dtype), sums)
        else:
            sums += tl.sum(weights.to(tl.float32), 1)
    else:
        products = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
        sums += powers(products * scale - normaliser[:, None], HALF).to(tl.float32)
    return sums


@jit
def choose(
    chosen,  # (capacity,) int32
    counts,  # (sequences,) int32
    cu_seqlens,
    positions,  # (capacity,) int32
    EVERY: tl.constexpr,
    TOKENS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Which rows of a run were at a multiple of EVERY; one program per run."""
    begin(EARLY)
    start = tl.load(cu_seqlens + tl.program_id(0))
    length = tl.load(cu_seqlens + tl.program_id(0) + 1) - start
    count = 0
    for first in range(0, length, TOKENS):
        offsets = first + tl.arange(0, TOKENS)
        at = tl.load(positions + start + offsets, mask=offsets < length, other=1)
        asks = ((at % EVERY == 0) & (offsets < length)).to(tl.int32)
        place = count + tl.cumsum(asks, 0) - 1
        tl.store(chosen + start + place, start + offsets, mask=asks == 1)
        count += tl.sum(asks, 0)
    tl.store(counts + tl.program_id(0), count)


@jit
def from_first(
    received,  # (HEADS, capacity) float32
    log_sum_exp,
    qkv,
    cu_seqlens,
    capacity,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """What keys receive from the first query alone: one program per run and block of keys, all heads."""
    begin(EARLY)
    sequence = tl.program_id(0)
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    offsets = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    live = offsets < length
    if tl.program_id(1) * KEYS >= length:
        return
    ROW: tl.constexpr = 3 * HEADS * WIDTH
    for head in range(HEADS):
        query = tl.load(qkv + start.to(tl.int64) * ROW + head * WIDTH + tl.arange(0, WIDTH)).to(tl.float32)
        key = tile(qkv + (HEADS + head) * WIDTH, start + offsets, live, ROW, WIDTH, WIDTH).to(tl.float32)
        logits = tl.sum(key * query[None, :], 1) * scale
        weights = tl.exp2(logits - tl.load(log_sum_exp + head * capacity + start))
        tl.store(received + head * capacity + start + offsets, weights, mask=live)
