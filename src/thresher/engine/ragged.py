"""Ragged batches: all tokens of all sequences in one array, with no padding anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Sequences laid end to end.

    values: (total, ...); cu_seqlens: (batch + 1,) where each run starts, and the total; positions: (total,) each
    token's place in its original sequence, whatever was dropped since; sequences: (batch,) which input each run is.
    """

    values: Tensor
    cu_seqlens: Tensor
    positions: Tensor
    sequences: Tensor

    @staticmethod
    def pack(parts: Sequence[Tensor]) -> "Ragged":
        """Lay sequences (length, ...) end to end, in the given order."""
        if not parts or min(len(part) for part in parts) == 0:
            raise ValueError("a ragged batch needs at least one sequence, and every sequence at least one token")
        lengths = torch.tensor([len(part) for part in parts])
        return Ragged(
            values=torch.cat(list(parts)),
            cu_seqlens=_starts(lengths),
            positions=torch.cat([torch.arange(len(part)) for part in parts]),
            sequences=torch.arange(len(parts)),
        )

    def to(self, device: str) -> "Ragged":
        """The same batch in another place."""
        return Ragged(
            values=self.values.to(device),
            cu_seqlens=self.cu_seqlens.to(device),
            positions=self.positions.to(device),
            sequences=self.sequences.to(device),
        )

    @property
    def lengths(self) -> Tensor:
        """(batch,) tokens of each run."""
        return self.cu_seqlens.diff()

    @property
    def first(self) -> Tensor:
        """(batch,) row of each run's first token."""
        return self.cu_seqlens[:-1]

    def compact(self, keep: Tensor, *, longest_first: bool = False) -> "tuple[Ragged, Tensor]":
        """Drop the rows where `keep` (total,) is False; returns what is left and the rows it came from.

        Every run must keep a token. `longest_first` also reorders the runs by length, so that runs of equal length are
        neighbours; the rows are gathered anyway, so the new order costs nothing.
        """
        owner = torch.repeat_interleave(torch.arange(len(self.sequences), device=keep.device), self.lengths)
        rows = keep.nonzero().squeeze(-1)
        lengths = torch.bincount(owner[rows], minlength=len(self.sequences))
        if bool((lengths == 0).any()):
            raise ValueError("a sequence lost all its tokens")
        sequences = self.sequences
        if longest_first:
            order = torch.argsort(lengths, descending=True, stable=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order), device=order.device)
            rows = rows[torch.argsort(place[owner[rows]], stable=True)]
            lengths, sequences = lengths[order], sequences[order]
        smaller = Ragged(
            values=self.values[rows],
            cu_seqlens=_starts(lengths),
            positions=self.positions[rows],
            sequences=sequences,
        )
        return smaller, rows


def idle_rows(rows: int, step: int) -> int:
    """How many rows to add to get whole steps.

    `step` is for some hundred rows. Steps shrink below them, because a single text waits for its idle rows, and grow
    above: at most a sixteenth of few rows is idle, and a thirty-second of many.
    """
    few, many = (1 << max(0, rows.bit_length() - bits) for bits in (5, 6))
    return -rows % max(min(step, few), many) if step > 1 else 0


def _starts(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
