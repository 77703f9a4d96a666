"""Engines of one processor take turns, and one that hangs is waited for once, not again and again."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Client, served, setting
from tests.serving.test_faults import GOOD, staged, until
from thresher.serving import worker
from thresher.serving.house import House
from thresher.serving.queue import Limits
from thresher.serving.worker import Turns

PATIENCE = 0.5  # several times what a thread of a busy machine may be late


@contextmanager
def holder(turns: Turns) -> Iterator[Callable[[], None]]:
    """A thread that has the turn until what is given is called."""
    has, go = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.mine():
            has.set()
            go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(30)

    def free() -> None:
        go.set()
        thread.join(30)

    try:
        yield free
    finally:
        free()


def waited(turns: Turns) -> tuple[float, float]:
    """Seconds until it is our turn, and those that were lost with somebody overdue."""
    began = time.monotonic()
    with turns.mine() as lost:
        return time.monotonic() - began, lost


def test_who_is_overdue_is_waited_for_once() -> None:
    turns = Turns(PATIENCE)
    with holder(turns) as free:
        first, lost = waited(turns)
        assert 0 < lost <= first
        for _ in range(5):
            assert waited(turns)[1] == 0
        free()
        assert waited(turns)[1] == 0


def test_the_others_still_take_turns_and_so_does_who_comes_back() -> None:
    turns = Turns(PATIENCE)
    with holder(turns) as free:
        waited(turns)
        with holder(turns) as second:
            free()  # what was overdue ends, and does not end the second one's turn
            began = time.monotonic()
            threading.Timer(PATIENCE / 5, second).start()
            assert waited(turns)[1] == 0 and time.monotonic() - began >= PATIENCE / 5


def test_whoever_waits_says_that_it_lives() -> None:
    turns, beats = Turns(PATIENCE), list[int]()
    with holder(turns), turns.mine(lambda: beats.append(1)):
        assert beats


@pytest.fixture
def two(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """As by default: an engine may be silent for as long as requests may take."""
    monkeypatch.setattr(worker, "LONGEST_TURN_S", 0.5)
    limits = Limits(timeout_s=20.0)
    house = House([setting(runs, name, limits=limits) for name in ("classes", "labels")], patience=20.0)
    with served(house) as client:
        yield client


def test_a_run_beside_one_that_hangs_answers_all(two: Client) -> None:
    stage: Any = staged(two.house, "classes")
    stage.go.clear()
    stuck = threading.Thread(target=two.post, args=("/run/classes/predict", GOOD))
    stuck.start()
    assert stage.entered.wait(30)
    pace = two.house.runs["labels"].queue.pace
    usual = pace.seconds_per_token
    began = time.monotonic()
    assert [two.post("/run/labels/predict", GOOD).status for _ in range(16)] == [200] * 16
    assert time.monotonic() - began < 10 and pace.seconds_per_token < 5 * usual
    assert two.get("/run/labels/readyz").status == 200
    stage.go.set()
    stuck.join(30)
    assert until(lambda: two.post("/run/classes/predict", GOOD).status == 200)
