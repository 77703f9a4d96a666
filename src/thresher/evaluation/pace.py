"""How much of a race fits into a given time: every row runs a few texts first, which say what all of it takes."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from thresher.evaluation.contenders import Contender
from thresher.evaluation.rivals import Row

ROUNDS = 5
LATENCY_TEXTS = 50
FEWEST_SINGLE = 10  # single texts, of which a median still says something
FEWEST_ROWS = 8  # of a race; where a batch of long texts takes too long, it has no more
SLOW = 4.0  # times the median contender: whoever takes longer is timed on fewer batches
SAMPLE_TOKENS = 1024  # enough for a processor to be as quick as it is with more
SINGLE_SHARE = 0.25  # of a race's time, for single texts
MAKING_SHARE = 0.5  # of all the time: what is not converted by then is missing
RACE_SHARE = 0.8  # of what is left; the rest is for memory
LEAST_SHARE = 0.25  # of all the time, for a race that begins late
LEAST_MEMORY = 0.1  # and for memory
Timer = Callable[[Contender, Sequence[Row]], float]  # seconds of one call
R = TypeVar("R", bound=Row)


class Clock:
    """What is left of the `seconds` that a bench may take, all its parts together."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self._now = seconds, now
        self._began = now()

    @property
    def spent(self) -> float:
        return self._now() - self._began

    def late_to_make(self) -> bool:
        """Whether no more models are to be converted."""
        return self.spent > MAKING_SHARE * self.seconds

    def for_race(self) -> float:
        return max(LEAST_SHARE * self.seconds, RACE_SHARE * (self.seconds - self.spent))

    def for_memory(self) -> "Clock":
        return Clock(max(LEAST_MEMORY * self.seconds, self.seconds - self.spent), self._now)

    def over(self) -> bool:
        return self.spent > self.seconds


@dataclass(frozen=True)
class Pace:
    """Texts and timed rounds of a race; texts that run alone; of each contender the share of its batches that is timed
    in a round. `notes` say what was left out, and why."""

    rows: int
    rounds: int
    single: int
    parts: tuple[float, ...]
    notes: tuple[str, ...] = ()


def sample_of(rows: Sequence[R], batch_size: int, device: str = "cpu") -> Sequence[R]:
    """The first texts, with which a contender is tried and warmed up: a batch; on a processor, to which length alone
    matters, no more tokens than it takes to be at full speed, and at least two texts."""
    batch = rows[:batch_size]
    if device != "cpu":
        return batch
    total, count = 0, 0
    while count < len(batch) and (count < 2 or total + len(batch[count].input_ids) <= SAMPLE_TOKENS):
        total += len(batch[count].input_ids)
        count += 1
    return batch[:count]


def find_pace(
    contenders: Sequence[Contender],
    rows: Sequence[Row],
    timer: Timer,
    *,
    batch_size: int,
    seconds: float,
    rounds: int | None = None,
    may_cut: bool = True,
) -> Pace:
    """What fits into about `seconds`: at least a warm-up and one round, with at least a few rows.

    `rounds` that are given are run, all of them and whole; without `may_cut` all rows take part.
    """
    tokens = sum(len(row.input_ids) for row in rows)
    first = sample_of(rows, batch_size, contenders[0].spec.device)
    share = tokens / sum(len(row.input_ids) for row in first)
    passes = [share * timer(contender, first) for contender in contenders]
    middle = sorted(rows, key=lambda row: len(row.input_ids))[len(rows) // 2]
    alone = sum(timer(contender, [middle]) for contender in contenders)
    racing = seconds * (1 - SINGLE_SHARE)
    notes: list[str] = []
    kept = _fitting(len(rows), batch_size, racing / max(1e-9, 2 * sum(passes))) if may_cut else len(rows)
    if kept < len(rows):
        notes.append(f"{kept} of {len(rows)} texts (--rows decides)")
    passes = [value * kept / len(rows) for value in passes]
    typical = statistics.median(passes)
    parts = tuple(1.0 if rounds is not None or value <= SLOW * typical else SLOW * typical / value for value in passes)
    slow = [contender.spec for contender, part in zip(contenders, parts, strict=True) if part < 1]
    if slow:
        names = ", ".join(f"{spec.engine} {spec.dtype}" for spec in slow)
        notes.append(f"part of the batches of what is over {SLOW:g}x slower than the median row: {names}")
    left = racing - sum(passes)
    fitting = int(left / max(1e-9, sum(value * part for value, part in zip(passes, parts, strict=True))))
    found = rounds if rounds is not None else max(1, min(ROUNDS, fitting))
    if rounds is None and found < ROUNDS:
        notes.append(f"{found} of {ROUNDS} rounds (--rounds decides)")
    wanted = min(LATENCY_TEXTS, kept)
    single = min(wanted, max(FEWEST_SINGLE, int(seconds * SINGLE_SHARE / max(1e-9, 2 * alone))))
    if single < wanted:
        notes.append(f"{single} of {wanted} texts alone")
    return Pace(kept, found, single, parts, tuple(notes))


def _fitting(rows: int, batch_size: int, share: float) -> int:
    """Of so many rows those of this share, in whole batches, or else a few."""
    if share >= 1:
        return rows
    some = int(rows * share)
    whole = some // batch_size * batch_size
    return min(rows, max(FEWEST_ROWS, whole or some))


def chosen_batches(count: int, part: float) -> list[int]:
    """The numbers of the batches that are timed, evenly spread, at least one."""
    some = max(1, round(count * part))
    return [i * count // some for i in range(some)]
