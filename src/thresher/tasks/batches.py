"""Which rows go into which batch: similar lengths together, so that little is padded, and reproducibly."""

import hashlib
from collections.abc import Sequence

import torch

from thresher.errors import ConfigError

# Rows are sorted by length only within this many batches, so that batches still mix rows from all over the data.
WINDOW = 50


def batches(lengths: Sequence[int], *, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Row indices of each training batch of one epoch: whole batches, no row twice.

    Rows that make no whole batch are left out, chosen by chance before any sorting: were they the longest, a small data
    set would never train on them. The same (seed, epoch) gives the same batches on every machine.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size = {batch_size} must be at least 1")
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    order: list[int] = torch.randperm(len(lengths), generator=generator).tolist()
    order = order[: len(order) // batch_size * batch_size]
    grouped: list[list[int]] = []
    window = WINDOW * batch_size
    for start in range(0, len(order), window):
        rows = sorted(order[start : start + window], key=lengths.__getitem__)
        grouped += [rows[first : first + batch_size] for first in range(0, len(rows), batch_size)]
    return [grouped[i] for i in torch.randperm(len(grouped), generator=generator).tolist()]


def sorted_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Row indices of each evaluation batch: at most `max_tokens` tokens with padding, at least one row.

    Longest first, so that a batch too large for the memory fails at once and not at the end.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens = {max_tokens} must be at least 1")
    grouped: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if grouped and (len(grouped[-1]) + 1) * longest <= max_tokens:
            grouped[-1].append(index)
        else:
            grouped.append([index])
            longest = lengths[index]
    return grouped


def _mixed(seed: int, epoch: int) -> int:
    """One seed from two numbers; a plain sum would give (seed 0, epoch 1) the batches of (seed 1, epoch 0)."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch}".encode()).digest()[:8], "big") >> 1
