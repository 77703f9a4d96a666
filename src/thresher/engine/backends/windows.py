"""Attention inside windows on CPUs. Live tokens are sorted by their original positions, so the keys that a block of
queries sees are one contiguous range of rows: what is computed grows with the window and not with the run."""

import torch
from torch import Tensor

from thresher.engine.backends.attention import STEP, Bias, Tiles

QUERIES = 64  # of a block: fewer see fewer keys for nothing, more make larger products


def window_bias(at: Tensor, of: Tensor, *, window: int, heads: int = 1) -> Bias | None:
    """Minus infinity for keys outside a query's window; None where there are none. at (count, queries), of (count,
    keys): original positions, in their order; of one run, one head's is enough for all."""
    far = torch.maximum((of[:, -1] - at[:, 0]).abs(), (at[:, -1] - of[:, 0]).abs())
    if int(far.max()) <= window:
        return None

    def of_rows(rows: slice) -> Tensor:
        outside = (of[:, None, :] - at[:, rows, None]).abs() > window
        return torch.zeros(outside.shape).masked_fill_(outside, float("-inf"))[:, None].expand(-1, heads, -1, -1)

    return of_rows


def in_windows(
    tiles: Tiles,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    *,
    window: int,
    out: Tensor,
    scored: bool,
    counted: Tensor | None = None,
) -> Tensor | None:
    """What `Tiles.attend` computes for one run, with keys that are at most `window` positions from the query.

    query, key, value: (heads, tokens, head width), as `laid_out` gives them; positions: (tokens,) without idle ones;
    out: (1, heads, tokens, head width); counted: (tokens,) or None. Received: (heads, tokens).
    """
    tokens = len(positions)
    received = torch.zeros(len(query), tokens) if scored else None
    starts = torch.arange(0, tokens, QUERIES)
    ends = (starts + QUERIES).clamp(max=tokens)
    lows = torch.searchsorted(positions, positions[starts] - window).tolist()
    highs = torch.searchsorted(positions, positions[ends - 1] + window, right=True).tolist()
    for start, end, low, high in zip(starts.tolist(), ends.tolist(), lows, highs, strict=True):
        # Whole steps: in bf16 a program is built and kept for every new size.
        low, padded = low // STEP * STEP, min(-(-high // STEP) * STEP, key.shape[1])
        seen, rows = slice(low, padded), slice(start, start + QUERIES)
        keys = min(padded, tokens) - low
        of = positions[low : low + keys][None]
        share = tiles.attend(
            query[:, rows],
            key[:, seen],
            value[:, seen],
            keys=keys,
            out=out[:, :, start:end],
            bias=window_bias(positions[start:end][None], of, window=window),
            scored=scored,
            counted=None if counted is None else counted[start:end],
        )
        if received is not None and share is not None:
            received[:, low : low + keys] += share
    return received
