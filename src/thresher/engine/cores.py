"""A large batch on several cores: some, or one, compute texts of their own, from the first layer to the last.

The other way, all cores on every operation, has them wait for each other hundreds of times in a layer, and what one
core wrote is in another's cache. Small batches are computed so all the same: half a text is not to be had. Either way
all cores work: where there are fewer shares than cores, every share has the same number of them.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from thresher.engine.checks import check_threads
from thresher.engine.forks import OneAtATime
from thresher.engine.ragged import Ragged

FEWEST = 512  # tokens of a share
UNEVEN = 1.2  # times the mean: where one share has more tokens than that, more cores are better off in fewer shares
BUDGET = 4096  # tokens of a batch that are enough for few cores: more rows make a product no faster
OF_A_CORE = 1024  # tokens of a batch for each of many cores: twice FEWEST, so that shares come out even
Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """Some texts of a batch. ids: as a batch of their own, whose inputs are these texts in the batch's order; rows:
    where their tokens are in the batch; numbers: (texts,) which inputs they are, ascending."""

    ids: Ragged
    rows: Tensor
    numbers: Tensor


def set_threads(threads: int | None) -> None:
    """How many threads torch computes with in this process, where that is said."""
    threads = check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)


def budget_of(cores: int) -> int:
    """Tokens of a batch that keep so many cores busy."""
    return max(BUDGET, OF_A_CORE * cores)


def dealt(lengths: Sequence[int], cores: int) -> list[list[int]]:
    """Which texts, by their numbers, each share has; none where all cores are better off on every operation.

    The most shares that are large and even enough, of the numbers that divide the cores: all of them then work. Texts
    keep their order, longest first.
    """
    tokens = sum(lengths)
    for count in range(min(cores, tokens // FEWEST), 1, -1):
        if cores % count:
            continue
        loads, chosen = [0] * count, [list[int]() for _ in range(count)]
        for text, length in enumerate(lengths):
            least = loads.index(min(loads))
            loads[least] += length
            chosen[least].append(text)
        if all(chosen) and max(loads) * count <= UNEVEN * tokens:  # long texts may be one fewer than many shares
            return chosen
    return []


def shares_of(ids: Ragged, cores: int) -> list[Share]:
    """Shares of a batch, longest runs first in each, for as many threads that have cores / shares cores each."""
    starts = ids.cu_seqlens.tolist()
    return [
        _share(ids, torch.tensor(runs), [slice(starts[run], starts[run + 1]) for run in runs])
        for runs in dealt(ids.lengths.tolist(), cores)
    ]


def _share(ids: Ragged, runs: Tensor, parts: Sequence[slice]) -> Share:
    rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    numbers, order = ids.sequences[runs].sort()
    sequences = torch.empty_like(order)
    sequences[order] = torch.arange(len(order))
    lengths = ids.lengths[runs]
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Share(Ragged(ids.values[rows], starts, ids.positions[rows], sequences), rows, numbers)


def in_order(found: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Rows of all shares, (rows, ...) each, at their places in the batch."""
    whole = found[0].new_empty(sum(len(part) for part in found), *found[0].shape[1:])
    for part, place in zip(found, places, strict=True):
        whole[place] = part
    return whole


def at_the_same_time(work: Callable[[Part], Result], parts: Sequence[Part], cores: int) -> list[Result]:
    """Each in a thread of its own, which computes with its share of the cores."""
    return list(_threads(len(parts), max(1, cores // len(parts))).map(work, parts))


_made: dict[tuple[int, int, int], ThreadPoolExecutor] = {}
_making = OneAtATime()


def _threads(count: int, cores: int) -> ThreadPoolExecutor:
    """So many that have so many cores each. Kept for the process: a forked child has none of its parent's."""
    key = os.getpid(), count, cores
    with _making:
        if key not in _made:
            _made[key] = _started(count, cores)
        return _made[key]


def _started(count: int, cores: int) -> ThreadPoolExecutor:
    pool, ready = ThreadPoolExecutor(count, thread_name_prefix="thresher-core"), Barrier(count + 1)
    all_cores = torch.get_num_threads()

    def begin() -> None:
        torch.get_num_threads()  # torch sets up a thread when it is first asked, and would undo what comes before
        torch.set_num_threads(cores)
        ready.wait()

    waiting = [pool.submit(begin) for _ in range(count)]
    ready.wait()
    torch.set_num_threads(all_cores)  # for this thread, and for those that begin later
    for each in waiting:
        each.result()
    return pool
