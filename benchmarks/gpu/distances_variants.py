"""Ways of adding what distances add to attention, for distances_study.py: each is set up in a process of its own, by
putting its functions and sizes where the engine has its own."""
# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass

from torch import Tensor

from thresher.engine.kernels import attention, long_runs, tiles
from thresher.engine.kernels.distances import Distances
from thresher.engine.kernels.tiles import Rung, Tiles
from thresher.engine.kernels.toolchain import dot, jit, tl

SPAN = tl.constexpr(128)  # embeddings of distances that a tile multiplies at once, in "multiplied"
HALF = tl.constexpr(64)


@dataclass(frozen=True)
class Variant:
    """way: "former", how the engine gathered until this study; "rows", how it does now; "multiplied", without tables.
    plain, columns: the tiles of both passes; whole: the longest run that is one tile."""

    way: str = "rows"
    plain: Tiles = tiles.DISTANT[0].plain
    columns: Tiles = tiles.DISTANT[0].columns
    whole: int = tiles.DISTANT[0].longer_than


ENGINE = Variant()
VARIANTS: dict[str, Variant] = {
    "former": Variant("former", whole=128),
    "engine": ENGINE,
    "64x64w8": Variant(plain=Tiles(64, 64, 8, 1), columns=Tiles(64, 64, 8, 1)),
    "128x64w8": Variant(plain=Tiles(128, 64, 8, 1), columns=Tiles(128, 64, 8, 1)),
    "64x32w4": Variant(plain=Tiles(64, 32, 4, 1), columns=Tiles(64, 32, 4, 1)),
    "two stages": Variant(plain=Tiles(64, 64, 4, 2), columns=Tiles(64, 64, 8, 2)),
    "one tile up to 128 tokens": Variant(whole=128),
    "multiplied": Variant("multiplied", Tiles(64, 64, 8, 1), Tiles(64, 64, 8, 1)),
}


def set_up(variant: Variant) -> None:
    """For the rest of this process, before any kernel is compiled."""
    found = Rung(variant.whole, variant.plain, variant.columns, variant.columns)
    tiles.DISTANT = (found,)
    if variant.way == "rows":
        return
    for module in (attention, long_runs):
        module.logits_of = former if variant.way == "former" else multiplied
    if variant.way == "multiplied":
        attention.distance_products = Embeddings()


class Embeddings:
    """In place of tables: embeddings where the kernels look for a head's table, copied at their first call only."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int], tuple[Tensor | None, Tensor | None]] = {}
        self.given: list[Distances] = []  # so that no other gets the number of one that is gone

    def __call__(
        self, qkv: Tensor, cu_seqlens: Tensor, positions: Tensor, given: Distances, *, max_length: int
    ) -> tuple[Tensor | None, Tensor | None]:
        key = (id(given), len(qkv))
        if key not in self.made:
            self.made[key] = placed(given.keys, len(qkv)), placed(given.queries, len(qkv))
            self.given.append(given)
        return self.made[key]


def placed(embeddings: Tensor | None, capacity: int) -> Tensor | None:
    """(heads, capacity, embeddings), a head's embeddings at the beginning of its place, which has room for them."""
    if embeddings is None:
        return None
    heads, rows, width = embeddings.shape
    table = embeddings.new_zeros(heads, capacity * rows)
    table[:, : rows * width] = embeddings.flatten(1)
    return table


@jit
def former(
    query, query_rows, query_live, key, key_rows, key_live, scale, bias, bias_row, positions, of_queries, of_keys,
    index, DISTANCES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """logits_of with both terms, as it was: in two dimensions, and added to the product."""
    logits = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
    at = tl.load(positions + query_rows, mask=query_live, other=0)
    of = tl.load(positions + key_rows, mask=key_live, other=0)
    row = tl.load(index + (at[:, None] - of[None, :]))
    both = query_live[:, None] & key_live[None, :]
    term = tl.load(of_queries + query_rows.to(tl.int64)[:, None] * DISTANCES + row, mask=both, other=0.0)
    logits += term.to(tl.float32)
    row = tl.load(index + (at[None, :] - of[:, None]))
    both = key_live[:, None] & query_live[None, :]
    term = tl.load(of_keys + key_rows.to(tl.int64)[:, None] * DISTANCES + row, mask=both, other=0.0)
    logits += tl.trans(term).to(tl.float32)
    return tl.where(key_live[None, :], logits * scale, float("-inf"))


@jit
def multiplied(
    query, query_rows, query_live, key, key_rows, key_live, scale, bias, bias_row, positions, of_queries, of_keys,
    index, DISTANCES: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """logits_of with both terms, without tables: a tile multiplies the embeddings that it asks for. Without gaps in the
    positions these are at most queries + keys - 1; gaps take further rounds of SPAN."""
    at = tl.load(positions + query_rows, mask=query_live, other=0)
    of = tl.load(positions + key_rows, mask=key_live, other=0)
    theirs = tl.reshape(of, (of.shape[0] // 32, 1, 32))
    distance = tl.permute(tl.load(index + (at[None, :, None] - theirs)), (1, 0, 2))
    distance = tl.reshape(distance, (at.shape[0], of.shape[0]))
    low = tl.load(index + (tl.min(tl.where(query_live, at, 2**30), 0) - tl.max(of, 0)))
    high = tl.load(index + (tl.max(at, 0) - tl.min(tl.where(key_live, of, 2**30), 0)))
    sums = tl.zeros((query.shape[0], key.shape[0]), tl.float32)
    for first in range(low, high + 1, SPAN):
        place = distance - first
        here = (place >= 0) & (place < SPAN)
        near = _embeddings(of_queries, first, query.shape[1], DISTANCES)
        far = _embeddings(of_queries, first + HALF, query.shape[1], DISTANCES)
        near = dot(query, tl.trans(near), tl.zeros((query.shape[0], HALF), tl.float32))
        far = dot(query, tl.trans(far), tl.zeros((query.shape[0], HALF), tl.float32))
        sums += tl.where(here, _picked(near.to(query.dtype), far.to(query.dtype), place, 1), 0.0)
        near = _embeddings(of_keys, first, key.shape[1], DISTANCES)
        far = _embeddings(of_keys, first + HALF, key.shape[1], DISTANCES)
        near = dot(near, tl.trans(key), tl.zeros((HALF, key.shape[0]), tl.float32))
        far = dot(far, tl.trans(key), tl.zeros((HALF, key.shape[0]), tl.float32))
        sums += tl.where(here, _picked(near.to(key.dtype), far.to(key.dtype), place, 0), 0.0)
    logits = dot(query, tl.trans(key), sums) * scale
    return tl.where(key_live[None, :], logits, float("-inf"))


@jit
def _embeddings(table, first, WIDTH: tl.constexpr, DISTANCES: tl.constexpr):
    """(HALF, WIDTH), zeros where there is none."""
    rows = first + tl.arange(0, HALF)
    at = table + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(at, mask=(rows < DISTANCES)[:, None], other=0.0)


@jit
def _picked(near, far, place, AXIS: tl.constexpr):
    """Half-precision numbers at these places of near and far end to end; anything where the place is none of theirs.

    A gather is a shuffle in the warp for each register of a lane: two numbers in half precision are one."""
    low = near.to(tl.uint16, bitcast=True).to(tl.uint32)
    high = far.to(tl.uint16, bitcast=True).to(tl.uint32)
    both = tl.gather(low | (high << 16), place & (HALF - 1), AXIS)
    one = tl.where((place & HALF) != 0, both >> 16, both)
    return one.to(tl.uint16).to(near.dtype, bitcast=True).to(tl.float32)
