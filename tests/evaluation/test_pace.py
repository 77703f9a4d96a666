"""How much of a race fits into its time: rounds first, then rows, and slow rivals in part; all of it is said. And of a
bench: what is made, raced and measured on one clock."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from thresher.evaluation.contenders import Contender, Result, Spec, Tokens
from thresher.evaluation.pace import LATENCY_TEXTS, ROUNDS, Clock, Pace, chosen_batches, find_pace, sample_of
from thresher.evaluation.rivals import Row

ROWS = [Tokens([1] * 10, None) for _ in range(128)]


def contender(engine: str) -> Contender:
    def run(rows: Sequence[Row]) -> Result:
        return np.zeros((len(rows), 1), np.float32), None

    return Contender(Spec(engine, "fp32", Path("nowhere"), pad_id=0, threads=1), run)


def pace(each: dict[str, float], *, seconds: float, rounds: int | None = None, may_cut: bool = True) -> Pace:
    """Contenders by the seconds that a text takes them."""
    entered = [contender(name) for name in each]
    return find_pace(
        entered,
        ROWS,
        lambda one, rows: each[one.spec.engine] * len(rows),
        batch_size=16,
        seconds=seconds,
        rounds=rounds,
        may_cut=may_cut,
    )


def test_what_is_quick_is_run_whole() -> None:
    found = pace({"a": 0.001, "b": 0.002}, seconds=240)
    assert found == Pace(rows=128, rounds=ROUNDS, single=LATENCY_TEXTS, parts=(1.0, 1.0))


def test_rounds_go_first() -> None:
    """128 texts of 0.5 s in both: a warm-up of 128 s and a round of 128 s, where two rounds would be too long."""
    found = pace({"a": 0.5, "b": 0.5}, seconds=400)  # of which 300 are for it
    assert (found.rows, found.rounds, found.parts) == (128, 1, (1.0, 1.0))
    assert "1 of 5 rounds (--rounds decides)" in found.notes


def test_then_rows_in_whole_batches() -> None:
    found = pace({"a": 1.0, "b": 1.0}, seconds=200)
    assert (found.rows, found.rounds) == (32, 1)  # warm-up and round of 37 texts would take the time
    assert found.notes[0] == "32 of 128 texts (--rows decides)"


def test_of_long_texts_less_than_a_batch() -> None:
    """Warm-up and round of a batch of 16 would take 80 s."""
    assert pace({"a": 1.25, "b": 1.25}, seconds=80).rows == 12
    assert pace({"a": 100.0, "b": 100.0}, seconds=10).rows == 8, "a few are the least"


def test_all_of_it_ends_in_time() -> None:
    """Warm-up, rounds and single texts, each of which runs twice."""
    for each in (0.001, 0.01, 0.05, 0.2, 0.4):
        found = pace({"a": each, "b": 3 * each}, seconds=100)
        taken = 4 * each * (found.rows * (1 + found.rounds) + 2 * found.single)
        assert taken <= 110, (each, found)


def test_a_sample_of_long_texts_is_short() -> None:
    long = [Tokens([1] * 384, None) for _ in range(64)]
    assert len(sample_of(long, 32)) == 2 and len(sample_of(long, 32, "cuda")) == 32
    assert len(sample_of(ROWS, 32)) == 32 and len(sample_of(ROWS, 128)) == 102
    assert len(sample_of(long[:1], 32)) == 1 == len(sample_of(long, 1))


def test_one_clock_for_all_parts() -> None:
    now = 0.0
    clock = Clock(100, now=lambda: now)
    assert clock.for_race() == 80 and not clock.late_to_make()
    now = 60
    assert clock.late_to_make() and clock.for_race() == 32
    memory = clock.for_memory()
    now = 90
    assert not memory.over() and clock.for_race() == 25, "a late race still has a quarter"
    now = 101
    assert memory.over() and clock.for_memory().seconds == 10


def test_single_texts_are_fewer_but_never_too_few() -> None:
    assert pace({"a": 1.0, "b": 1.0}, seconds=240).single == 15  # each runs twice: 15 x 2 x 2 s is a quarter
    found = pace({"a": 9.0, "b": 9.0}, seconds=1000)
    assert found.single == 10 and "10 of 16 texts alone" in found.notes


def test_a_slow_rival_is_timed_in_part_and_named() -> None:
    found = pace({"a": 0.01, "b": 0.01, "slow": 0.1}, seconds=240)
    assert found.parts == (1.0, 1.0, pytest.approx(0.4)) and found.rows == 128
    assert any("over 4x slower than the median row: slow fp32" in note for note in found.notes)


def test_what_was_asked_for_is_run() -> None:
    found = pace({"a": 1.0, "b": 1.0, "slow": 9.0}, seconds=10, rounds=3, may_cut=False)
    assert (found.rows, found.rounds, found.parts) == (128, 3, (1.0, 1.0, 1.0))
    assert [note for note in found.notes if "alone" not in note] == []


def test_batches_in_part_are_evenly_spread() -> None:
    assert chosen_batches(8, 1.0) == list(range(8))
    assert chosen_batches(8, 0.5) == [0, 2, 4, 6]
    assert chosen_batches(8, 0.01) == [0]
