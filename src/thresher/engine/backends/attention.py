"""Attention of packed runs on CPUs, in tiles of query rows that stay in the cache, with what every key receives.

In tiles, weights are powers of two that are not yet divided by their sum: queries come times log2(e), no row's maximum
is looked for unless the powers leave the range of numbers, and the sums divide the few numbers that come out instead of
the many that go in. Short runs are computed at once, in fewer operations.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from thresher.engine.ragged import idle_rows

LOG2_E = math.log2(math.e)
TILE = 2**21  # weights held at a time, in numbers
STEP = 16  # rows of a tile, and idle keys in bf16: see laid_out
# Sums of powers that neither overflowed nor lost a weight that counts.
LOWEST, HIGHEST = 2.0**-60, 2.0**100

Bias = Callable[[slice], Tensor]  # of these query rows: (runs, heads, rows, keys)


def laid_out(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """(parts, runs, heads, tokens, head width) -> (parts, runs x heads, tokens, head width) in one piece.

    In bf16 with idle tokens, which are zeros, at the end: oneDNN, which has these products, builds and keeps a program
    for every new length. In fp32 there is none.
    """
    tokens = parts.shape[3]
    if dtype == torch.float32:
        # The first copies in any dtype, the second only where there was nothing to convert.
        return parts.to(dtype, memory_format=torch.contiguous_format).contiguous().flatten(1, 2)
    whole = parts.new_zeros(*parts.shape[:3], tokens + idle_rows(tokens, STEP), parts.shape[4], dtype=dtype)
    whole[:, :, :, :tokens] = parts
    return whole.flatten(1, 2)


def attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, *, out: Tensor, bias: Bias | None = None, scored: bool = False
) -> Tensor | None:
    """What `Tiles.attend` computes, with all weights at a time, in float32."""
    logits = torch.bmm(query / LOG2_E, key.transpose(1, 2))
    if bias is not None:
        logits.add_(bias(slice(None)).flatten(0, 1))
    weights = torch.softmax(logits, dim=-1)
    out.copy_(torch.bmm(weights, value).view(out.shape))
    return weights.sum(dim=1) if scored else None


class Tiles:
    """Attention in room for one tile, kept for all runs of a layer: every new one would be cold memory."""

    def __init__(self) -> None:
        self.room: dict[torch.dtype, Tensor] = {}

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keys: int,
        out: Tensor,
        bias: Bias | None = None,
        scored: bool = False,
    ) -> Tensor | None:
        """softmax(query key^T + bias) value into `out`; if asked, what keys receive from all queries.

        query: (runs x heads, queries, head width) times log2(e); key, value: (runs x heads, keys, head width); as
        `laid_out` gives them. In bfloat16, logits are, too, and weights where they meet values. out: (runs, heads,
        queries, head width) without idle ones, in any dtype. Received: (runs x heads, keys) in float32.
        """
        key = key.transpose(1, 2)
        received = torch.zeros(len(query), 1, keys) if scored else None
        for rows in tile_rows(*query.shape[:2], keys=keys):
            asking, into = query[:, rows], out[:, :, rows]
            live = (len(query), into.shape[2], keys)
            weights, shares = self._powers(asking, key, None if bias is None else bias(rows).flatten(0, 1), live)
            if received is not None:
                received.baddbmm_(shares.transpose(1, 2), weights)
            if value.dtype != weights.dtype:
                weights = self._halves(weights, asking, key)
            mixed = torch.bmm(weights, value)[:, : live[1]]
            torch.mul(mixed.view(*into.shape), shares.view(*into.shape[:3], 1), out=into)
        return None if received is None else received.squeeze(1)

    def _powers(
        self, query: Tensor, key: Tensor, bias: Tensor | None, live: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor]:
        """Powers of two in float32, each row times any number, (live), and 1 / its sum, (units, rows, 1)."""
        powers = self._logits(query, key, bias, live).exp2_()
        sums = powers.sum(dim=-1, keepdim=True)
        low, high = sums.aminmax()
        if not (float(low) > LOWEST and float(high) < HIGHEST):
            logits = self._logits(query, key, bias, live)
            powers = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp2_()
            sums = powers.sum(dim=-1, keepdim=True)
        return powers, sums.reciprocal_()

    def _logits(self, query: Tensor, key: Tensor, bias: Tensor | None, live: tuple[int, int, int]) -> Tensor:
        """(units, rows, keys) in float32, of live ones."""
        logits = torch.bmm(query, key, out=self._empty((*query.shape[:2], key.shape[2]), query.dtype))
        if logits.dtype != torch.float32:
            logits = self._empty(live, torch.float32).copy_(logits[:, : live[1], : live[2]])
        return logits if bias is None else logits.add_(bias, alpha=LOG2_E)

    def _halves(self, weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Weights in the place of the logits they come from: those of idle tokens are zeros there."""
        whole = self._empty((*query.shape[:2], key.shape[2]), query.dtype)
        whole[:, : weights.shape[1], : weights.shape[2]] = weights
        return whole

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The same place every time."""
        numbers = math.prod(shape)
        if dtype not in self.room or len(self.room[dtype]) < numbers:
            self.room[dtype] = torch.empty(numbers, dtype=dtype)
        return self.room[dtype][:numbers].view(shape)


def tile_rows(units: int, queries: int, *, keys: int) -> Iterator[slice]:
    """The query rows of each tile, about as many in all."""
    tiles = math.ceil(units * queries * keys / TILE)
    step = STEP * math.ceil(queries / tiles / STEP)
    return (slice(start, start + step) for start in range(0, queries, step))
