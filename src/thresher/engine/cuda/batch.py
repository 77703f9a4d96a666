"""A packed batch as one array of int32: written in pinned memory, it crosses to the GPU in a single copy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.inputs import Tables, protected_rows
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Weights
from thresher.tokenizing.tokens import Tokens

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

    def fill(self, layout: Layout, tokens: Tokens) -> Tensor:
        """A buffer of this layout, (size,) int32. Missing token types are zeros.

        In numpy: several threads may pack at once, and each would get threads of torch's own.
        """
        buffer = torch.empty(layout.size, dtype=torch.int32, pin_memory=self.pinned)
        parts, total, starts = layout.views(buffer), tokens.total, tokens.starts
        types = tokens.types if self.typed else None
        self.tables.check(int(tokens.lengths.max()), tokens.ids, types)
        parts.ids.numpy()[:total] = tokens.ids
        if self.typed:
            parts.types.numpy()[:total] = 0 if types is None else types
        positions = np.arange(total, dtype=np.int32) - np.repeat(starts[:-1].astype(np.int32), tokens.lengths)
        parts.positions.numpy()[:total] = positions
        parts.cu_seqlens.numpy()[: len(starts)] = starts
        parts.cu_seqlens.numpy()[len(starts) :] = total
        parts.live_sequences.numpy()[0] = len(tokens)
        runs = Ragged(
            values=parts.ids[:total],
            cu_seqlens=torch.from_numpy(starts),
            positions=parts.positions[:total],
            sequences=torch.arange(len(tokens)),
        )
        self._fill_rows(parts, runs, positions)
        return buffer

    def _fill_rows(self, parts: Inputs, runs: Ragged, positions: Any) -> None:
        """Rows of the position table, and flags of protected tokens: what most models have without a detour."""
        total, uncounted = len(positions), self.weights.uncounted_id
        if uncounted is None or not (runs.values.numpy() == uncounted).any():
            parts.position_rows.numpy()[:total] = positions + self.weights.position_offset
        else:
            parts.position_rows[:total] = self.weights.position_rows(runs)
        if self.plan.protect == ("first",):
            parts.protected.numpy()[:total] = positions == 0
        else:
            parts.protected[:total] = protected_rows(runs, self.plan)
