"""What the dense teacher says of the training rows, and the part of it that a batch learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Targets:
    """values: (rows, outputs), or, with the rows' `lengths`, (tokens of all rows end to end, outputs)."""

    values: Tensor
    lengths: tuple[int, ...] | None = None

    def of(self, rows: Sequence[int], *, tokens: int) -> Tensor:
        """Those of a batch, whose rows are padded to so many tokens: (batch, outputs) or (batch, tokens, outputs)."""
        if self._by_row is None:
            return self.values[list(rows)]
        found = pad_sequence([self._by_row[row] for row in rows], batch_first=True)
        return torch.nn.functional.pad(found, (0, 0, 0, tokens - found.shape[1]))

    @cached_property
    def _by_row(self) -> tuple[Tensor, ...] | None:
        return None if self.lengths is None else torch.split(self.values, list(self.lengths))


def padded(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens end to end (tokens, outputs) as (rows, longest, outputs), and which are tokens, (rows, longest)."""
    found = pad_sequence(list(torch.split(values, lengths.tolist())), batch_first=True)
    return found, torch.arange(found.shape[1]) < lengths[:, None]
