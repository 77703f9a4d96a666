"""Who knows how many tokens are left: the host, which waits after every pruning, or only the device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thresher.engine.cuda.batch import Inputs, Layout
from thresher.engine.cuda.products import Count
from thresher.engine.kernels.prune import Kept

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Live:
    """The tokens that are left. positions: (capacity,) int32, protected: (capacity,) bool, cu_seqlens: int32."""

    cu_seqlens: Tensor
    positions: Tensor
    protected: Tensor
    max_length: int
    tokens: Count
    sequences: Count

    @property
    def typical(self) -> int:
        """About how many tokens a run has, at least one."""
        return max(1, -(-self.tokens.expected // max(1, self.sequences.expected)))


class Counts(Protocol):
    """`live` is what the first layer sees; `settle` says what is live after a pruning, and which old rows the new ones
    were (None: all stayed where they were)."""

    live: Live

    def settle(self, kept: Kept, before: Live) -> tuple[Live, Tensor | None]: ...


class OnHost:
    """One synchronisation per pruning layer; products then get exactly the live rows. `starts` are where sequences
    start after each pruning, (sequences + 1,) each."""

    def __init__(self, inputs: Inputs, layout: Layout) -> None:
        tokens, sequences = Count(None, layout.tokens), Count(None, layout.sequences)
        self.live = Live(inputs.cu_seqlens, inputs.positions, inputs.protected, layout.max_length, tokens, sequences)
        self.starts: list[Numbers] = []

    def settle(self, kept: Kept, before: Live) -> tuple[Live, Tensor | None]:
        starts: Numbers = to_host(kept.cu_seqlens).numpy()
        self.starts.append(starts)
        total, longest = int(starts[-1]), int(np.diff(starts).max())
        if total == len(before.positions):
            return before, None
        tokens = Count(None, total)
        live = Live(kept.cu_seqlens, kept.positions[:total], kept.protected[:total], longest, tokens, before.sequences)
        return live, kept.rows[:total]


class OnDevice:
    """Buffers keep their capacity, and kernels read how many rows are live; `expected` tells the host about how many,
    before and after each pruning. `starts` as above, on the device."""

    def __init__(self, inputs: Inputs, layout: Layout, expected: Sequence[int]) -> None:
        self.expected = expected
        self.live = Live(
            cu_seqlens=inputs.cu_seqlens,
            positions=inputs.positions,
            protected=inputs.protected,
            max_length=layout.max_length,
            tokens=Count(inputs.cu_seqlens[-1:], expected[0]),
            sequences=Count(inputs.live_sequences, layout.sequences),
        )
        self.starts: list[Tensor] = []

    def settle(self, kept: Kept, before: Live) -> tuple[Live, Tensor | None]:
        self.starts.append(kept.cu_seqlens)
        live = replace(
            before,
            cu_seqlens=kept.cu_seqlens,
            positions=kept.positions,
            protected=kept.protected,
            tokens=Count(kept.cu_seqlens[-1:], self.expected[len(self.starts)]),
        )
        return live, kept.rows


def to_host(values: Tensor) -> Tensor:
    """Copied through pinned memory; waits for the GPU."""
    if values.device.type == "cpu":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    return host
