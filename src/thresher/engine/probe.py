"""Which arithmetic is fast here: measured once with a tiny product, and remembered on disk."""

import contextlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from thresher.engine.backends.linear import LINEARS, check_int8
from thresher.engine.weights import Affine
from thresher.errors import ConfigError
from thresher.hardware import cpu_name
from thresher.records import write_json

ROWS, WIDTH = 256, 768
# A busy machine interrupts what is timed, now this arithmetic and now that one, and for many times in a row. So they
# take turns, a time counts only where no thread waited for a processor meanwhile, and the least of such times only once
# it was met again. On two cores with a load of five, 6 of 12 measurements were certain; beside three more busy loops 0
# of 25, and one thread's time decided. All 37 had the order int8, bf16, fp32, that of the undisturbed times.
LEAST_ROUNDS, ENOUGH, AGAIN, NEAR = 10, 5, 3, 1.1
BLIND_ROUNDS = 40  # at least, where the system does not tell who waited
MOST_ROUNDS, PATIENCE = 200, 3.0  # rounds and seconds until a machine is too busy to tell
WAITED = 0.05  # share of its time that a product may have waited
FEW_ROUNDS, LOOKS = 5, 4  # rounds of one look whether what is remembered still holds, and how often it may look again
HOPELESS = 4.0  # times the fastest: not worth a turn
DOUBT = 0.5  # a product that takes this much of its remembered time was not measured on an idle machine
SWAPPED = 1.25  # nor were two of which the one that was faster is now slower by this much

Product = Callable[[], object]


def probe(*, cached: bool = True) -> dict[str, float]:
    """Milliseconds of one product in each arithmetic that works here, on the current number of threads.

    What is remembered is measured anew where a look at the machine contradicts it, and replaced only by a measurement
    that could be repeated: another choice gives other roundings, so it is not changed by chance.
    """
    file, key = cache_file(), _key()
    known = _read(file)
    remembered = known.get(key) if cached else None
    if remembered is not None and not _contradicted(remembered):
        return remembered
    dtypes = [dtype for dtype in LINEARS if _works(dtype)]
    found, certain = _measure(dtypes)
    if not certain:
        return _of_one_thread(dtypes) if remembered is None else remembered
    try:
        write_json(file, {**known, key: found})
    except OSError:  # nothing can be written there: measured again next time
        pass
    return found


def _contradicted(remembered: dict[str, float]) -> bool:
    """Whether the machine is far faster than it was then, or has another order of what is fast, as far as a look tells.

    A busy machine may turn the order around for a moment: then it is looked at again.
    """
    fastest = min(remembered.values())
    worthy = [dtype for dtype, ms in remembered.items() if ms <= HOPELESS * fastest and dtype in LINEARS]
    pairs = [(one, other) for one in worthy for other in worthy if remembered[one] < remembered[other]]
    race, swapped = _Race(worthy), False
    for _ in range(LOOKS):
        for _ in range(FEW_ROUNDS):
            race.round()
        now = race.least()
        if any(now[dtype] < DOUBT * remembered[dtype] for dtype in worthy):
            return True
        swapped = any(now[one] > SWAPPED * now[other] for one, other in pairs)
        if not swapped:
            break
    return swapped


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


def cache_file() -> Path:
    """Where measurements are remembered; THRESHER_CACHE names another folder."""
    named = os.environ.get("THRESHER_CACHE")
    if named:
        return Path(named) / "probe.json"
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user may have no home
        caches = Path(tempfile.gettempdir())
    return caches / "thresher" / "probe.json"


def _key() -> str:
    """A measurement holds for one processor, one torch and one number of threads."""
    return f"{platform.machine()}, {cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _read(file: Path) -> dict[str, dict[str, float]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known = {str(key): {str(name): float(ms) for name, ms in value.items()} for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):  # none yet, or damaged: it is measured anew
        return {}
    return {key: times for key, times in known.items() if _is_whole(times)}


def _is_whole(times: dict[str, float]) -> bool:
    """What works everywhere is there, and every time is one."""
    return {"fp32", "bf16"} <= set(times) and all(math.isfinite(ms) and ms > 0 for ms in times.values())


def _works(dtype: str) -> bool:
    try:
        if dtype == "int8":
            check_int8()
    except ConfigError:
        return False
    return True


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
