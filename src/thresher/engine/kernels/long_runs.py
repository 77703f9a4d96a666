"""Attention of runs whose keys do not fit in one tile: a pass with a running maximum, and one over the columns."""
# mypy: disable-error-code="no-untyped-def"

from thresher.engine.kernels.logits import LOG2_E, lengths_of, logits_of, store_context, tile
from thresher.engine.kernels.toolchain import begin, dot, jit, tl


@jit
def long_runs(
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
    of_queries,
    of_keys,
    index,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
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
    if of_queries is not None:
        of_queries += head.to(tl.int64) * capacity * DISTANCES
    if of_keys is not None:
        of_keys += head.to(tl.int64) * capacity * DISTANCES
    offsets = first_query + tl.arange(0, QUERIES)
    rows = start + offsets
    live = offsets < length
    query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
    low, high = 0, length
    # Positions rise by one at least, so no key in a window is farther away in rows than in positions. A block of keys
    # may have none in a query's window: the peak is finite from the beginning there.
    lowest: tl.constexpr = float("-inf") if WINDOW is None else -1e30
    if WINDOW is not None:
        low = tl.maximum(first_query - WINDOW, 0)
        high = tl.minimum(first_query + QUERIES + WINDOW, length)
    peak = tl.full((QUERIES,), lowest, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, TILE_WIDTH), tl.float32)
    for first_key in range(low, high, KEYS):
        key_offsets = first_key + tl.arange(0, KEYS)
        key_rows = start + key_offsets
        key_live = key_offsets < length
        key = tile(keys, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
        value = tile(values, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions,
                           of_queries, of_keys, index, DISTANCES, WINDOW)  # fmt: skip
        higher = tl.maximum(peak, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        attended = dot(weights.to(value.dtype), value, attended * shrink[:, None])
        peak = higher
    store_context(context + head * WIDTH, rows, live, attended / total[:, None], ROW // 3, WIDTH, TILE_WIDTH)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + head * capacity + rows, peak + tl.log2(total), mask=live)


@jit
def received_in_long_runs(
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
    of_queries,
    of_keys,
    index,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
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
    if of_queries is not None:
        of_queries += head.to(tl.int64) * capacity * DISTANCES
    if of_keys is not None:
        of_keys += head.to(tl.int64) * capacity * DISTANCES
    key_offsets = first_key + tl.arange(0, KEYS)
    key_rows = start + key_offsets
    key_live = key_offsets < length
    key = tile(queries + HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH)
    # Added up across threads once, at the end: that takes longer than a tile's exponentials.
    partial = tl.zeros((QUERIES, KEYS), tl.float32)
    low, high = 0, length
    if WINDOW is not None:
        low = tl.maximum(first_key - WINDOW, 0)
        high = tl.minimum(first_key + KEYS + WINDOW, length)
    for first_query in range(low, high, QUERIES):
        offsets = first_query + tl.arange(0, QUERIES)
        rows = start + offsets
        live = offsets < length
        query = tile(queries, rows, live, ROW, WIDTH, TILE_WIDTH)
        logits = logits_of(query, rows, live, key, key_rows, key_live, scale, bias, bias_row, positions,
                           of_queries, of_keys, index, DISTANCES, WINDOW)  # fmt: skip
        # An infinite log-sum-exp gives a query that is not there no weight.
        normaliser = tl.load(log_sum_exp + head * capacity + rows, mask=live, other=float("inf"))
        if NATURAL:
            normaliser *= LOG2_E
        partial += tl.exp2(logits - normaliser[:, None])
    columns = tl.sum(partial, 0)
    if BY_VALUE:
        columns *= lengths_of(tile(queries + 2 * HEADS * WIDTH, key_rows, key_live, ROW, WIDTH, TILE_WIDTH))
    tl.store(received + head * capacity + key_rows, columns, mask=key_live)
