"""What attention compares: tiles of queries and keys, their products, and what places add to them or hide."""
# mypy: disable-error-code="no-untyped-def"

import math

import torch
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.kernels.distances import Distances, distance_terms, distance_terms_reference
from thresher.engine.kernels.eight import stored_as
from thresher.engine.kernels.toolchain import dot, jit, tl

LOG2_E = tl.constexpr(math.log2(math.e))  # exponentials are taken to base 2, the GPU's own


def place_arguments(
    positions: Tensor | None,
    distance_bias: Tensor | None,
    window: int | None = None,
    distances: Distances | None = None,
    products: tuple[Tensor | None, Tensor | None] = (None, None),
) -> dict[str, object]:
    """The kernels' arguments for all that goes by places; what a layer does not have is None, and compiles to nothing.

    The tables of biases and of distances are given from their zero distance on.
    """
    row, head = (0, 0) if distance_bias is None else distance_bias.stride()
    placed = distance_bias is not None or window is not None or distances is not None
    return {
        "bias": None if distance_bias is None else distance_bias[len(distance_bias) // 2 :],
        "bias_row": row,
        "bias_head": head,
        "positions": positions if placed else None,
        "of_queries": products[0],
        "of_keys": products[1],
        "index": None if distances is None else distances.from_zero,
        "DISTANCES": None if distances is None else distances.rows,
        "WINDOW": window,
    }


def logits_reference(
    query: Tensor,
    key: Tensor,
    positions: Tensor | None,
    *,
    distance_bias: Tensor | None = None,
    distances: Distances | None = None,
    window: int | None = None,
    divisor: float | None = None,
) -> Tensor:
    """What the twins compare in one run, in plain torch: (heads, queries, keys). query, key: (heads, tokens, head
    width), where queries are those of the run's first keys; positions: of the keys, or None: in order."""
    of = torch.arange(key.shape[1], device=key.device) if positions is None else positions.long()
    at = of[: query.shape[1]]
    logits = at_least_float32(query) @ at_least_float32(key).transpose(1, 2)
    if distances is not None:
        logits = logits + distance_terms_reference(query, key, at, of, distances)
    logits = logits / (divisor or math.sqrt(query.shape[-1]))
    if distance_bias is not None:
        bias = distance_bias[of[None, :] - at[:, None] + len(distance_bias) // 2]  # (queries, keys, heads)
        logits = logits + bias.permute(2, 0, 1)
    if window is not None:
        logits = logits.masked_fill((of[None, :] - at[:, None]).abs() > window, float("-inf"))
    return logits


@jit
def asks(positions, rows, live, EVERY: tl.constexpr):
    """Whether queries' attention counts, by their original positions: see `counted_queries`."""
    at = tl.load(positions + rows, mask=live, other=1)
    if EVERY == 0:
        counted = at == 0
    else:
        counted = at % EVERY == 0
    return counted & live


@jit
def tile(part, rows, live, ROW: tl.constexpr, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr):
    """(rows, TILE_WIDTH) of one head's queries, keys or values; zeros where there is nothing. live None: all are."""
    columns = tl.arange(0, TILE_WIDTH)
    at = part + rows.to(tl.int64)[:, None] * ROW + columns[None, :]
    if live is not None:
        found = tl.load(at, mask=live[:, None] & (columns < WIDTH)[None, :], other=0.0)
    elif WIDTH == TILE_WIDTH:
        found = tl.load(at)
    else:
        found = tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)
    return found


@jit
def logits_of(
    query,
    query_rows,
    query_live,
    key,
    key_rows,
    key_live,
    scale,
    bias,
    bias_row,
    positions,
    of_queries,
    of_keys,
    index,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """(queries, keys) to base 2, minus infinity where there is no key, or none in the query's window."""
    sums = tl.zeros((query.shape[0], key.shape[0]), tl.float32)
    if index is not None:
        # First: added to the product, Triton raises sums to powers twice, in the layout of products and that of loads.
        sums += distance_terms(query_rows, query_live, key_rows, key_live, positions, of_queries, of_keys, index,
                               DISTANCES)  # fmt: skip
    logits = dot(query, tl.trans(key), sums)
    if positions is not None:
        at = tl.load(positions + query_rows, mask=query_live, other=0)
        of = tl.load(positions + key_rows, mask=key_live, other=0)
    logits *= scale
    if bias is not None:
        logits += tl.load(bias + (of[None, :] - at[:, None]) * bias_row) * LOG2_E
    if WINDOW is not None:  # queries that are not there see all, so that nothing is divided by zero
        far = tl.abs(of[None, :] - at[:, None]) > WINDOW
        logits = tl.where(far & query_live[:, None], float("-inf"), logits)
    return tl.where(key_live[None, :], logits, float("-inf"))


@jit
def lengths_of(vectors):
    """(rows,) in float32, of (rows, width) in any precision."""
    exact = vectors.to(tl.float32)
    return tl.sqrt_rn(tl.sum(exact * exact, 1))


@jit
def store_context(
    context, rows, live, tile_values, units, ROW: tl.constexpr, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr
):
    """units: (WIDTH,) float32 of this head, or None."""
    columns = tl.arange(0, TILE_WIDTH)
    there = columns < WIDTH
    if units is not None:
        tile_values *= tl.load(units + columns, mask=there, other=0.0)[None, :]
    at = context + rows.to(tl.int64)[:, None] * ROW + columns[None, :]
    tl.store(at, stored_as(tile_values, context.dtype.element_ty), mask=live[:, None] & there[None, :])
