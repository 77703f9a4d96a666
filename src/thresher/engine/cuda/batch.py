"""A packed batch as one array of int32: written in pinned memory, it crosses to the GPU in a single copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.inputs import Tables, protected_rows
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Weights
from thresher.errors import ModelError

ALIGNED = 32  # numbers: sections start at multiples of 128 bytes, so that kernels may load vectors


@dataclass(frozen=True)
class Inputs:
    """Views of one buffer, on the host or on the device. (tokens,) each, but the last two.

    ids, position_rows, positions, types: int32 (types has no elements where the model has no token types); protected:
    bool; cu_seqlens: (sequences + 1,) int32, runs past the live ones are empty; live_sequences: (1,) int32.
    """

    ids: Tensor
    position_rows: Tensor
    positions: Tensor
    types: Tensor
    protected: Tensor
    cu_seqlens: Tensor
    live_sequences: Tensor


@dataclass(frozen=True)
class Layout:
    """Where the parts lie in a buffer with room for so many tokens and sequences, none longer than max_length."""

    tokens: int
    sequences: int
    max_length: int
    typed: bool

    @property
    def sizes(self) -> list[int]:
        """int32 numbers of each part; four flags to a number."""
        types = self.tokens if self.typed else 0
        return [self.tokens, self.tokens, self.tokens, types, -(-self.tokens // 4), self.sequences + 1, 1]

    @property
    def size(self) -> int:
        return sum(-(-size // ALIGNED) * ALIGNED for size in self.sizes)

    def views(self, buffer: Tensor) -> Inputs:
        """The parts of a buffer (size,)."""
        parts, start = [], 0
        for size in self.sizes:
            parts.append(buffer[start : start + size])
            start += -(-size // ALIGNED) * ALIGNED
        parts[4] = parts[4].view(torch.uint8)[: self.tokens].view(torch.bool)
        return Inputs(*parts)


@dataclass(frozen=True)
class HostBatch:
    """A batch ready to be sent: the filled buffer, its layout, the texts' lengths (batch,), and the mode it is for."""

    buffer: Tensor
    layout: Layout
    lengths: Tensor
    mode: str


class Packer:
    """Fills buffers with texts, in their order."""

    def __init__(self, weights: Weights, tables: Tables, plan: PruningPlan, *, pinned: bool) -> None:
        self.weights, self.tables, self.plan, self.pinned = weights, tables, plan, pinned
        self.typed = weights.token_type is not None

    def lengths(self, input_ids: Sequence[Sequence[int]]) -> Tensor:
        """(batch,) of texts that the model can take."""
        sizes = [len(ids) for ids in input_ids]
        if not sizes or min(sizes) == 0:
            raise ModelError("every sequence needs at least one token, and a batch at least one sequence")
        return torch.tensor(sizes)

    def fill(
        self, layout: Layout, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None
    ) -> Tensor:
        """A buffer of this layout, (size,) int32. Missing token types are zeros."""
        buffer = torch.empty(layout.size, dtype=torch.int32, pin_memory=self.pinned)
        parts = layout.views(buffer)
        lengths = np.fromiter(map(len, input_ids), np.int64, len(input_ids))
        starts = np.concatenate([[0], lengths.cumsum()])
        total = int(starts[-1])
        ids, flags = parts.ids[:total], parts.protected[:total]
        ids.numpy()[:] = np.fromiter(chain.from_iterable(input_ids), np.int32, total)
        types = _types(lengths, token_types) if self.typed else None
        self.tables.check(int(lengths.max()), ids.numpy(), types)
        if types is not None:
            parts.types.numpy()[:total] = types
        parts.positions.numpy()[:total] = np.arange(total) - np.repeat(starts[:-1], lengths)
        parts.cu_seqlens.numpy()[: len(starts)] = starts
        parts.cu_seqlens[len(starts) :] = total
        parts.live_sequences[0] = len(lengths)
        runs = Ragged(
            values=ids,
            cu_seqlens=torch.from_numpy(starts),
            positions=parts.positions[:total],
            sequences=torch.arange(len(lengths)),
        )
        parts.position_rows[:total] = self.weights.position_rows(runs)
        flags[:] = protected_rows(runs, self.plan)
        return buffer


def _types(lengths: Any, token_types: Sequence[Sequence[int] | None] | None) -> Any:
    """(total,) numbers, or the one number that all of them are."""
    if token_types is None or all(kinds is None for kinds in token_types):
        return 0
    given = (kinds or [0] * int(length) for kinds, length in zip(token_types, lengths, strict=True))
    return np.fromiter(chain.from_iterable(given), np.int32, int(lengths.sum()))
