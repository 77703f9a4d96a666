"""Products of queries and keys with embeddings of distances (DeBERTa): tables from which attention gathers.

A run needs the distances that there are in it and no others, so only those are computed: a block of rows finds the
first and the last from its own positions and the run's ends, because positions rise and so do the rows of distances.
"""
# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass

from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    dot,
    jit,
    launching,
    power_of_two,
    require_contiguous,
    tl,
)

ROWS, COLUMNS = 64, 64
ALIGNED = tl.constexpr(16)  # columns: stores then begin at whole sectors


@dataclass(frozen=True)
class Distances:
    """Embeddings of distances as a layer's queries and keys meet them; one row serves both.

    keys, queries: (heads, embeddings, head width), or None where there is no such term; index: (2 x positions - 1,)
    int32, the row of every query position minus key position. It never falls.
    """

    keys: Tensor | None
    queries: Tensor | None
    index: Tensor

    @property
    def from_zero(self) -> Tensor:
        """The index from distance zero on; what is before it can be reached as well."""
        return self.index[len(self.index) // 2 :]

    @property
    def rows(self) -> int:
        found = self.keys if self.keys is not None else self.queries
        assert found is not None  # a layer without either has no distances
        return found.shape[1]


def distance_products(
    qkv: Tensor, cu_seqlens: Tensor, positions: Tensor | None, distances: Distances | None, *, max_length: int
) -> tuple[Tensor | None, Tensor | None]:
    """Queries times keys of distances, and keys times queries of distances: (heads, capacity, embeddings) each.

    They are in the dtype of qkv, and undefined for distances that are not in a row's run; None where there is no such
    term. qkv: (capacity, 3 x width),
    heads inside; cu_seqlens: (sequences + 1,) int32; positions: (capacity,) int32.
    """
    if distances is None:
        return None, None
    require_contiguous(qkv=qkv, cu_seqlens=cu_seqlens, positions=positions, index=distances.index)
    found: list[Tensor | None] = []
    for part, embeddings in enumerate((distances.keys, distances.queries)):
        if embeddings is None:
            found.append(None)
            continue
        require_contiguous(embeddings=embeddings)
        heads, rows, width = embeddings.shape
        result = qkv.new_empty(heads, len(qkv), rows)
        _distance_products[((len(cu_seqlens) - 1) * heads, blocks(max_length, ROWS))](
            result=result,
            states=qkv,
            embeddings=embeddings,
            cu_seqlens=cu_seqlens,
            positions=positions,
            index=distances.from_zero,
            capacity=len(qkv),
            OF_KEYS=part,
            HEADS=heads,
            WIDTH=width,
            TILE_WIDTH=power_of_two(width, least=16),
            DISTANCES=rows,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            **launching(qkv, num_warps=4),
        )
        found.append(result)
    return found[0], found[1]


def distance_terms_reference(
    query: Tensor, key: Tensor, at: Tensor, of: Tensor, distances: Distances
) -> Tensor | float:
    """What distances add to query x key in one run, in plain torch: (heads, queries, keys). query, key: (heads, tokens,
    head width); at, of: their positions. Products are rounded to the dtype of the states, as the kernel's are."""
    index = distances.index.long()[at[:, None] - of[None, :] + len(distances.index) // 2].expand(len(query), -1, -1)
    total: Tensor | float = 0.0
    if distances.keys is not None:
        total = _rounded(query, distances.keys).gather(2, index)
    if distances.queries is not None:
        total = total + _rounded(key, distances.queries).gather(2, index.transpose(1, 2)).transpose(1, 2)
    return total


def _rounded(states: Tensor, embeddings: Tensor) -> Tensor:
    exact = at_least_float32(states) @ at_least_float32(embeddings).transpose(1, 2)
    return at_least_float32(exact.to(states.dtype))


@jit
def _distance_products(
    result,  # (HEADS, capacity, DISTANCES)
    states,  # (capacity, 3 x HEADS x WIDTH)
    embeddings,  # (HEADS, DISTANCES, WIDTH)
    cu_seqlens,  # (sequences + 1,) int32
    positions,  # (capacity,) int32
    index,  # (positions,) int32 from distance zero on (what is before it is valid, too)
    capacity,
    OF_KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run, head and block of rows."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    first = tl.program_id(1) * ROWS
    if first >= length:
        return
    nearest = tl.load(positions + start + first)
    farthest = tl.load(positions + start + tl.minimum(first + ROWS, length) - 1)
    begins = tl.load(positions + start)
    ends = tl.load(positions + start + length - 1)
    if OF_KEYS:
        low = tl.load(index + (begins - farthest))
        high = tl.load(index + (ends - nearest))
    else:
        low = tl.load(index + (nearest - ends))
        high = tl.load(index + (farthest - begins))
    offsets = first + tl.arange(0, ROWS)
    rows = (start + offsets).to(tl.int64)
    columns = tl.arange(0, TILE_WIDTH)
    mine = states + OF_KEYS * HEADS * WIDTH + head * WIDTH + rows[:, None] * (3 * HEADS * WIDTH) + columns[None, :]
    values = tl.load(mine, mask=(offsets < length)[:, None] & (columns < WIDTH)[None, :], other=0.0)
    embeddings += head * DISTANCES * WIDTH
    result += head.to(tl.int64) * capacity * DISTANCES
    for distance in range(low // ALIGNED * ALIGNED, high + 1, COLUMNS):
        at = distance + tl.arange(0, COLUMNS)
        there = at < DISTANCES
        mask = there[:, None] & (columns < WIDTH)[None, :]
        embedding = tl.load(embeddings + at[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0)
        products = dot(values, tl.trans(embedding), tl.zeros((ROWS, COLUMNS), tl.float32))
        to = result + rows[:, None] * DISTANCES + at[None, :]
        tl.store(to, products.to(result.dtype.element_ty), mask=(offsets < length)[:, None] & there[None, :])


@jit
def distance_terms(
    query_rows, query_live, key_rows, key_live, positions, of_queries, of_keys, index, DISTANCES: tl.constexpr
):
    """(queries, keys) in float32: what distances add to the products, from the tables that there are; zero where there
    is no query or no key."""
    at = tl.load(positions + query_rows, mask=query_live, other=0)
    of = tl.load(positions + key_rows, mask=key_live, other=0)
    terms = tl.zeros((query_rows.shape[0], key_rows.shape[0]), tl.float32)
    if of_queries is not None:
        terms += _gathered(of_queries, query_rows, query_live, at, key_live, of, index, 1, DISTANCES).to(tl.float32)
    if of_keys is not None:
        # With keys as rows, because a key's products for neighbouring queries are neighbours in memory.
        term = _gathered(of_keys, key_rows, key_live, of, query_live, at, index, -1, DISTANCES)
        terms += tl.trans(term).to(tl.float32)
    return terms


@jit
def _gathered(
    products, rows, live, places, other_live, other_places, index, SIGN: tl.constexpr, DISTANCES: tl.constexpr
):
    """(rows, others): a table's products for the distance of every pair, zero where one of the two is not there.

    A warp takes 32 neighbours of one row, whose products are neighbours in memory. Triton would give eight neighbours
    to each lane where queries x keys is the shape of a head's tile, too, so that a warp's numbers were far apart: three
    dimensions are no such shape. With the groups of 32 first, warps share out rows, and each needs fewer places.
    """
    OTHERS: tl.constexpr = other_places.shape[0]
    LANES: tl.constexpr = min(32, OTHERS)
    theirs = tl.reshape(other_places, (OTHERS // LANES, 1, LANES))
    there = tl.reshape(other_live, (OTHERS // LANES, 1, LANES)) & live[None, :, None]
    distance = tl.load(index + SIGN * (places[None, :, None] - theirs))
    # In 32 bits, which spares registers: a head's table of more numbers would take 4 GiB.
    found = tl.load(products + ((rows * DISTANCES)[None, :, None] + distance), mask=there, other=0.0)
    return tl.reshape(tl.permute(found, (1, 0, 2)), (rows.shape[0], OTHERS))
