"""Engines of one processor take turns, and one that hangs is waited for once, not again and again."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Client, served, setting
from tests.serving.test_faults import GOOD, staged, until
from thresher.engine.packed import PackedExecutor
from thresher.serving import turns as turns_module
from thresher.serving.house import House
from thresher.serving.queue import Limits
from thresher.serving.turns import Turns

PATIENCE = 0.5  # several times what a thread of a busy machine may be late


@contextmanager
def holder(turns: Turns) -> Iterator[Callable[[], None]]:
    """A thread that has the turn until what is given is called."""
    has, go = threading.Event(), threading.Event()

    def hold() -> None:
        has.set()
        go.wait(30)

    thread = threading.Thread(target=turns.take, args=(hold,))
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
    return turns.take(lambda: time.monotonic() - began)


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
    with holder(turns):
        turns.take(lambda: None, lambda: beats.append(1))
        assert beats


def test_whoever_computes_itself_does_not_say_so() -> None:
    beats = list[int]()
    turns = Turns(0.05)
    turns.take(lambda: time.sleep(0.3), lambda: beats.append(1))
    assert len(beats) <= 1  # where the thread had not begun yet


def test_errors_come_back_and_end_nothing() -> None:
    class Panic(BaseException):
        """As Rust's panics reach Python."""

    turns = Turns(PATIENCE)

    def fails(error: BaseException) -> None:
        raise error

    for error in (ValueError("a"), TimeoutError("b"), Panic("c")):
        with pytest.raises(type(error)):
            turns.take(partial(fails, error))
    assert turns.take(lambda: 3) == (3, 0.0)


def test_the_thread_is_gone_at_the_end_and_comes_back_for_who_is_late() -> None:
    turns = Turns(PATIENCE)
    first, _ = turns.take(threading.current_thread)
    turns.close()
    assert until(lambda: not first.is_alive())
    second, _ = turns.take(threading.current_thread)
    assert second.is_alive() and second is not first and second.daemon
    turns.close()


def test_what_was_left_behind_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, done = Turns(PATIENCE), list[int]()
    with holder(turns) as free, ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(turns.take, partial(done.append, number)) for number in range(8)]:
            one.result(30)
        free()
    assert sorted(done) == list(range(8))


def test_all_engines_of_a_processor_compute_in_one_thread(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, inner = set[threading.Thread](), PackedExecutor._run

    def noting(*given: Any, **more: Any) -> Any:
        threads.add(threading.current_thread())
        return inner(*given, **more)

    names = ("classes", "labels", "embedder")
    with served(House([setting(runs, name, shadow=1.0) for name in names])) as client:
        monkeypatch.setattr(PackedExecutor, "_run", noting)
        for name in names[:2]:
            assert client.post(f"/run/{name}/predict", GOOD).status == 200
            assert client.post(f"/run/{name}/explain", {"text": "the film is good"}).status == 200
        assert client.post("/embed", {"inputs": "a river"}).status == 200
        assert until(lambda: all(run.drift.agreement is not None for run in client.house.runs.values()))
        (computes,) = threads
        assert computes.name == "computing"
    assert until(lambda: not computes.is_alive())


@pytest.fixture
def two(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """As by default: an engine may be silent for as long as requests may take."""
    monkeypatch.setattr(turns_module, "LONGEST_TURN_S", 0.5)
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
