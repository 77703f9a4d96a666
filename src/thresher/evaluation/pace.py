"""How much of a race fits into a given time: every row runs a batch first, which says what all of it takes."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thresher.evaluation.contenders import Contender
from thresher.evaluation.rivals import Row

ROUNDS = 5
LATENCY_TEXTS = 50
FEWEST_SINGLE = 10  # single texts, of which a median still says something
SLOW = 4.0  # times the median contender: whoever takes longer is timed on fewer batches
Timer = Callable[[Contender, Sequence[Row]], float]  # seconds of one call


@dataclass(frozen=True)
class Pace:
    """Texts and timed rounds of a race; texts that run alone; of each contender the share of its batches that is timed
    in a round. `notes` say what was left out, and why."""

    rows: int
    rounds: int
    single: int
    parts: tuple[float, ...]
    notes: tuple[str, ...] = ()


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
    """What fits into about `seconds`: at least a warm-up and one round, with at least one batch of rows.

    `rounds` that are given are run, all of them and whole; without `may_cut` all rows take part.
    """
    tokens = sum(len(row.input_ids) for row in rows)
    first = rows[:batch_size]
    share = tokens / sum(len(row.input_ids) for row in first)
    passes = [share * timer(contender, first) for contender in contenders]
    alone = sum(timer(contender, rows[:1]) for contender in contenders)
    notes: list[str] = []
    kept = len(rows)
    if may_cut and sum(passes) > seconds:
        kept = min(kept, max(batch_size, int(kept * seconds / sum(passes)) // batch_size * batch_size))
    if kept < len(rows):
        notes.append(f"{kept} of {len(rows)} texts (--rows decides)")
    passes = [value * kept / len(rows) for value in passes]
    typical = statistics.median(passes)
    parts = tuple(1.0 if rounds is not None or value <= SLOW * typical else SLOW * typical / value for value in passes)
    slow = [contender.spec for contender, part in zip(contenders, parts, strict=True) if part < 1]
    if slow:
        names = ", ".join(f"{spec.engine} {spec.dtype}" for spec in slow)
        notes.append(f"part of the batches of what is over {SLOW:g}x slower than the median row: {names}")
    left = seconds - sum(passes)
    fitting = int(left / max(1e-9, sum(value * part for value, part in zip(passes, parts, strict=True))))
    found = rounds if rounds is not None else max(1, min(ROUNDS, fitting))
    if rounds is None and found < ROUNDS:
        notes.append(f"{found} of {ROUNDS} rounds (--rounds decides)")
    wanted = min(LATENCY_TEXTS, kept)
    single = min(wanted, max(FEWEST_SINGLE, int(seconds / 2 / max(1e-9, 2 * alone))))
    if single < wanted:
        notes.append(f"{single} of {wanted} texts alone")
    return Pace(kept, found, single, parts, tuple(notes))


def chosen_batches(count: int, part: float) -> list[int]:
    """The numbers of the batches that are timed, evenly spread, at least one."""
    some = max(1, round(count * part))
    return [i * count // some for i in range(some)]
