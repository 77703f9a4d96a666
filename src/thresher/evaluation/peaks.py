"""The memory of a race's rows, each measured alone, as far as the time goes."""

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from typing import Any

import torch

from thresher.evaluation.alone import peak_memory
from thresher.evaluation.contenders import SORTED, Contender
from thresher.evaluation.lineup import HF, OURS, Missing
from thresher.evaluation.pace import Clock
from thresher.evaluation.rivals import Row

Pair = tuple[dict[str, Any], Contender]


def to_measure(rows: Sequence[dict[str, Any]], contenders: Sequence[Contender], *, sorted_too: bool) -> list[Pair]:
    """Rows with their contenders in the order in which memory is measured: the yardstick and our engine first.

    Every peak is a process that loads a model, so where time is short, sorted rows go without.
    """
    both = zip(rows, contenders, strict=True)
    chosen = [pair for pair in both if sorted_too or not pair[0]["engine"].endswith(SORTED)]
    return sorted(chosen, key=lambda pair: pair[0]["engine"] not in (HF, *OURS))


def add_peaks_(
    chosen: Sequence[Pair], texts: Sequence[Row], batch_size: int, *, clock: Clock, on_step: Callable[[], None]
) -> list[Missing]:
    """Each row's peak, into the row, until the clock is over, but the first in any case; what could not be measured is
    missing."""
    missing = []
    for number, (row, contender) in enumerate(chosen):
        if number and clock.over():
            break
        try:
            row |= asdict(peak_memory(contender.spec, texts, batch_size))
        # Killed, most likely for want of memory, or out of the GPU's; the race still counts.
        except (BrokenProcessPool, torch.OutOfMemoryError) as error:
            missing.append(Missing(row["engine"], row["dtype"], f"peak memory: {error}", row["mode"]))
        on_step()
    return missing
