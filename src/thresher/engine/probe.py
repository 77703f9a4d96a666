"""Which arithmetic is fast on this machine, measured with a tiny product: for `thresher doctor`, which advises."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from thresher.engine.arithmetic import int8_works
from thresher.engine.backends.linear import LINEARS
from thresher.engine.weights import Affine

ROWS, WIDTH = 256, 768
# A busy machine interrupts what is timed, now this arithmetic and now that one, and for many times in a row. So they
# take turns, a time counts only where no thread waited for a processor meanwhile, and the least of such times only once
# it was met again. On two cores with a load of five, 6 of 12 measurements were certain; beside three more busy loops 0
# of 25, and one thread's time decided. All 37 had the order int8, bf16, fp32, that of the undisturbed times.
LEAST_ROUNDS, ENOUGH, AGAIN, NEAR = 10, 5, 3, 1.1
BLIND_ROUNDS = 40  # at least, where the system does not tell who waited
MOST_ROUNDS, PATIENCE = 200, 3.0  # rounds and seconds until a machine is too busy to tell
WAITED = 0.05  # share of its time that a product may have waited
HOPELESS = 4.0  # times the fastest: not worth a turn

Product = Callable[[], object]


def measure() -> tuple[dict[str, float], bool]:
    """Milliseconds of one product in each arithmetic that works here, on the current number of threads, and whether
    they could be repeated; if not, they are a processor's time in one thread, which other programs take no part of."""
    dtypes = [dtype for dtype in LINEARS if dtype != "int8" or int8_works()]
    found, certain = _measure(dtypes)
    return (found, True) if certain else (_of_one_thread(dtypes), False)


def _measure(dtypes: Sequence[str]) -> tuple[dict[str, float], bool]:
    """The least milliseconds of each, and whether each that is worth a turn could be repeated."""
    race, ends = _Race(dtypes), time.perf_counter() + PATIENCE
    least = LEAST_ROUNDS if nanoseconds_waited() is not None else BLIND_ROUNDS
    for number in range(1, MOST_ROUNDS + 1):
        turns = race.round()
        if number >= least and all(_is_repeated(race.clean[dtype]) for dtype in turns):
            return race.least(), True
        if time.perf_counter() > ends:
            break
    return race.least(), False


def _of_one_thread(dtypes: Sequence[str]) -> dict[str, float]:
    """Milliseconds of a processor's time, which other programs do not take part of, in one thread, which waits for no
    other: what is left to go by on a machine that is too busy to time anything else."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        products = {dtype: _product(dtype) for dtype in dtypes}
        rounds = [{dtype: _milliseconds(products[dtype], time.thread_time) for dtype in dtypes} for _ in range(AGAIN)]
    finally:
        torch.set_num_threads(threads)
    return {dtype: min(times[dtype] for times in rounds) for dtype in dtypes}


class _Race:
    """Products that take turns, their times, and those of them in which no thread had to wait."""

    def __init__(self, dtypes: Sequence[str]) -> None:
        self._products = {dtype: _product(dtype) for dtype in dtypes}
        self._times: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
        self.clean: dict[str, list[float]] = {dtype: [] for dtype in dtypes}

    def round(self) -> list[str]:
        """Time each that is not hopeless once; returns which these were."""
        turns = [dtype for dtype in self.clean if not self._is_hopeless(dtype)]
        for dtype in turns:
            before = nanoseconds_waited() or 0
            taken = _milliseconds(self._products[dtype], time.perf_counter)
            self._times[dtype].append(taken)
            if (nanoseconds_waited() or 0) - before <= WAITED * taken * 1e6:
                self.clean[dtype].append(taken)
        return turns

    def least(self) -> dict[str, float]:
        """Of the clean times, where there are any."""
        return {dtype: min(self.clean[dtype] or found) for dtype, found in self._times.items()}

    def _is_hopeless(self, dtype: str) -> bool:
        found = self.clean[dtype]
        return len(found) >= AGAIN and min(found) > HOPELESS * min(self.least().values())


def _is_repeated(clean: list[float]) -> bool:
    return len(clean) >= ENOUGH and sum(ms <= NEAR * min(clean) for ms in clean) >= AGAIN


def nanoseconds_waited() -> int | None:
    """How long all threads of this process were ready to run and had no processor; None where the system keeps no
    account."""
    waited = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                waited += int(Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return waited


def _product(dtype: str) -> Product:
    """One product in this arithmetic, ready to be timed."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, generator=generator)
    linear = LINEARS[dtype](Affine(weight=weight, bias=torch.zeros(WIDTH)))
    values = torch.randn(ROWS, WIDTH, generator=generator)
    values = values.bfloat16() if dtype == "bf16" else values

    def multiply() -> object:
        with torch.inference_mode():
            return linear(values)

    multiply()  # the first call prepares what later ones find
    return multiply


def _milliseconds(product: Product, clock: Callable[[], float]) -> float:
    began = clock()
    product()
    return (clock() - began) * 1000
