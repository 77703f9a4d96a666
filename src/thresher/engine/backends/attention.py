"""Attention of packed runs on CPUs, in tiles of query rows that stay in the cache, with what every key receives.

In tiles, weights are powers of two that are not yet divided by their sum: queries come times log2(e), no row's maximum
is looked for unless the powers leave the range of numbers, and the sums divide the few numbers that come out instead of
the many that go in. Short runs are computed at once, in fewer operations.
"""

import math
import threading
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
    whole = parts.new_empty(*parts.shape[:3], tokens + idle_rows(tokens, STEP), parts.shape[4], dtype=dtype)
    whole[:, :, :, :tokens] = parts
    whole[:, :, :, tokens:] = 0
    return whole.flatten(1, 2)


def attend_at_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    out: Tensor,
    bias: Bias | None = None,
    scored: bool = False,
    counted: Tensor | None = None,
) -> Tensor | None:
    """What `Tiles.attend` computes, with all weights at a time, in float32. counted: (runs, queries)."""
    logits = torch.bmm(query / LOG2_E, key.transpose(1, 2))
    if bias is not None:
        logits.add_(bias(slice(None)).flatten(0, 1))
    weights = torch.softmax(logits, dim=-1)
    out.copy_(torch.bmm(weights, value).view(out.shape))
    if scored and counted is not None:
        weights.view(*out.shape[:3], -1).mul_(counted[:, None, :, None])
    return weights.sum(dim=1) if scored else None


class Room(threading.local):
    """Memory that a thread keeps for what it computes again and again: with new memory, the first touch of every page
    costs more than what is computed in it. What is big beside a tile is new each time."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def empty(self, use: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The same place every time for one use."""
        numbers = math.prod(shape)
        if numbers > 2 * TILE:
            return torch.empty(shape, dtype=dtype)
        if (use, dtype) not in self.kept or len(self.kept[use, dtype]) < numbers:
            with torch.inference_mode(False):  # a tensor made in this mode could not be written outside of it
                self.kept[use, dtype] = torch.empty(numbers, dtype=dtype)
        return self.kept[use, dtype][:numbers].view(shape)


ROOM = Room()


class Tiles:
    """Attention in room for one tile, the same for all runs of a layer, and mostly that of the layer before."""

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
        counted: Tensor | None = None,
    ) -> Tensor | None:
        """softmax(query key^T + bias) value into `out`; if asked, what keys receive from all queries, or those counted.

        query: (runs x heads, queries, head width) times log2(e); key, value: (runs x heads, keys, head width); as
        `laid_out` gives them. In bfloat16, logits are, too, and weights where they meet values. out: (runs, heads,
        queries, head width) without idle ones, in any dtype. counted: boolean (queries,), of a run that comes alone.
        Received: (runs x heads, keys) in float32.
        """
        key = key.transpose(1, 2)
        received = torch.zeros(len(query), 1, key.shape[2]) if scored else None
        for rows in tile_rows(*query.shape[:2], keys=keys):
            asking, into = query[:, rows], out[:, :, rows]
            live = into.shape[2]  # of the tile's rows
            weights, shares = self._powers(asking, key, None if bias is None else bias(rows).flatten(0, 1), keys)
            if received is not None:
                asked = shares[:, :live], weights[:, :live]
                if counted is not None:
                    chosen = counted[rows].nonzero().squeeze(-1)
                    # Whole rows: three times as fast as by an index.
                    asked = shares.index_select(1, chosen), weights.index_select(1, chosen)
                received.baddbmm_(asked[0].transpose(1, 2), asked[1])
            if value.dtype != weights.dtype:
                weights = self._empty(weights.shape, value.dtype).copy_(weights)  # where logits were
            mixed = torch.bmm(weights, value)[:, :live]
            torch.mul(mixed.view(*into.shape), shares[:, :live].view(*into.shape[:3], 1), out=into)
        return None if received is None else received.squeeze(1)[:, :keys]

    def _powers(self, query: Tensor, key: Tensor, bias: Tensor | None, keys: int) -> tuple[Tensor, Tensor]:
        """Powers of two in float32, each row times any number, (units, rows, all keys), zeros for idle keys, and 1 /
        the row's sum, (units, rows, 1)."""
        powers = self._logits(query, key, bias, keys).exp2_()
        powers[:, :, keys:] = 0
        sums = powers.sum(dim=-1, keepdim=True)
        low, high = sums.aminmax()
        if not (float(low) > LOWEST and float(high) < HIGHEST):
            logits = self._logits(query, key, bias, keys)
            powers = logits.sub_(logits[:, :, :keys].amax(dim=-1, keepdim=True)).exp2_()
            powers[:, :, keys:] = 0
            sums = powers.sum(dim=-1, keepdim=True)
        return powers, sums.reciprocal_()

    def _logits(self, query: Tensor, key: Tensor, bias: Tensor | None, keys: int) -> Tensor:
        """(units, rows, all keys) in float32, in one piece: copies of a part of it would be several times as slow."""
        shape = (*query.shape[:2], key.shape[2])
        logits = torch.bmm(query, key, out=self._empty(shape, query.dtype))
        if logits.dtype != torch.float32:
            logits = self._empty(shape, torch.float32).copy_(logits)
        if bias is not None:
            logits[:, : bias.shape[1], :keys].add_(bias, alpha=LOG2_E)
        return logits

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The same place every time."""
        numbers = math.prod(shape)
        if dtype not in self.room or len(self.room[dtype]) < numbers:
            self.room[dtype] = ROOM.empty("tile", (numbers,), dtype)
        return self.room[dtype][:numbers].view(shape)


def tile_rows(units: int, queries: int, *, keys: int) -> Iterator[slice]:
    """The query rows of each tile, about as many in all."""
    tiles = math.ceil(units * queries * keys / TILE)
    step = STEP * math.ceil(queries / tiles / STEP)
    return (slice(start, start + step) for start in range(0, queries, step))
