"""Attention of each run's first token only: all that the last layer of a first-token classifier needs."""
# mypy: disable-error-code="no-untyped-def"

import math
from typing import Any

import torch
from torch import Tensor

from thresher.engine.eight import EIGHT, rounded
from thresher.engine.kernels.distances import Distances
from thresher.engine.kernels.eight import stored_as
from thresher.engine.kernels.logits import LOG2_E, logits_reference, place_arguments
from thresher.engine.kernels.toolchain import begin, jit, launching, power_of_two, require_contiguous, tl

KEYS = 32  # at once: most runs are short by the last layer


def attend_first(
    query: Tensor,
    key_value: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    distances: Distances | None = None,
    window: int | None = None,
    divisor: float | None = None,
    units: Tensor | None = None,
) -> Tensor:
    """The context of the first tokens (sequences, width); of an empty run, nothing is written.

    query: (sequences, width) of the first tokens, key_value: (capacity, 2 x width), all keys, all values, heads inside;
    cu_seqlens: (sequences + 1,) int32; all else: see attention.
    """
    require_contiguous(query=query, key_value=key_value, cu_seqlens=cu_seqlens, positions=positions)
    sequences, width = query.shape
    context = torch.empty_like(query, dtype=query.dtype if units is None else EIGHT)
    # One query needs few of the products with distances, so it makes them itself.
    parts = (None, None) if distances is None else (distances.keys, distances.queries)
    _first_tokens[(sequences * heads,)](
        context=context,
        units=units,
        queries=query,
        key_value=key_value,
        cu_seqlens=cu_seqlens,
        scale=math.log2(math.e) / (divisor or math.sqrt(width // heads)),
        **place_arguments(positions, distance_bias, window, distances, parts),
        HEADS=heads,
        WIDTH=width // heads,
        TILE_WIDTH=power_of_two(width // heads),
        KEYS=KEYS,
        **launching(query, num_warps=2),
    )
    return context


def attend_first_reference(
    query: Tensor,
    key_value: Tensor,
    cu_seqlens: Tensor,
    *,
    heads: int,
    positions: Tensor | None = None,
    units: Tensor | None = None,
    **places: Any,
) -> Tensor:
    """The same, one run at a time."""
    context, starts, head_width = torch.zeros_like(query), cu_seqlens.tolist(), query.shape[1] // heads
    for run, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        if start == end:
            continue
        parts = (query[run : run + 1], *key_value[start:end].chunk(2, dim=-1))
        asked, key, value = (part.view(len(part), heads, head_width).transpose(0, 1) for part in parts)
        at = None if positions is None else positions[start:end]
        probabilities = torch.softmax(logits_reference(asked, key, at, **places), dim=-1).to(value.dtype)
        context[run] = (probabilities @ value).flatten()
    return context if units is None else rounded(context, units).to(EIGHT)


@jit
def _first_tokens(
    context,  # (sequences, HEADS x WIDTH)
    units,  # (HEADS x WIDTH,) float32, or None
    queries,  # (sequences, HEADS x WIDTH)
    key_value,  # (capacity, 2 x HEADS x WIDTH)
    cu_seqlens,  # (sequences + 1,) int32
    scale,
    bias,  # (reach, HEADS) float32 from zero distance on, or None
    bias_row,
    bias_head,
    positions,  # (capacity,) int32, or None
    of_queries,  # (HEADS, DISTANCES, WIDTH): what queries are multiplied with, or None
    of_keys,  # (HEADS, DISTANCES, WIDTH): what keys are, or None
    index,  # (positions,) int32 from zero distance on (what is before it is valid, too), or None
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    DISTANCES: tl.constexpr,
    WINDOW: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per run and head. One query has no work for tensor cores: plain products, bound by the loads."""
    begin(EARLY)
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    if start == end:
        return
    columns = tl.arange(0, TILE_WIDTH)
    there = columns < WIDTH
    at = sequence * HEADS * WIDTH + head * WIDTH + columns
    query = tl.load(queries + at, mask=there, other=0.0).to(tl.float32) * scale
    peak = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    attended = tl.zeros((TILE_WIDTH,), tl.float32)
    if WINDOW is not None:  # see long_runs.py
        end = tl.minimum(end, start + WINDOW + 1)
    for first in range(start, end, KEYS):
        rows = first + tl.arange(0, KEYS)
        live = rows < end
        keys = key_value + rows.to(tl.int64)[:, None] * (2 * HEADS * WIDTH) + head * WIDTH + columns[None, :]
        mask = live[:, None] & there[None, :]
        key = tl.load(keys, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(keys + HEADS * WIDTH, mask=mask, other=0.0).to(tl.float32)
        logits = tl.sum(key * query[None, :], 1)
        if positions is not None:
            distance = tl.load(positions + rows, mask=live, other=0) - tl.load(positions + start)
        if index is not None:
            place = tl.load(index - distance)
            place = (head * DISTANCES + place)[:, None] * WIDTH + columns[None, :]
        if of_queries is not None:
            logits += tl.sum(tl.load(of_queries + place, mask=mask, other=0.0).to(tl.float32) * query[None, :], 1)
        if of_keys is not None:
            logits += tl.sum(tl.load(of_keys + place, mask=mask, other=0.0).to(tl.float32) * key, 1) * scale
        if bias is not None:
            logits += tl.load(bias + distance * bias_row + head * bias_head, mask=live, other=0.0) * LOG2_E
        if WINDOW is not None:
            logits = tl.where(distance > WINDOW, float("-inf"), logits)
        logits = tl.where(live, logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 0))
        weights = tl.exp2(logits - higher)
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 0)
        attended = attended * shrink + tl.sum(weights[:, None] * value, 0)
        peak = higher
    attended /= total
    if units is not None:
        attended *= tl.load(units + head * WIDTH + columns, mask=there, other=0.0)
    tl.store(context + at, stored_as(attended, context.dtype.element_ty), mask=there)
