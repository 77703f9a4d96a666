"""Before a server listens, its engine prepares for batches of many sizes; what it does meanwhile says nothing of its
pace, and what it had no time for waits until nobody does."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving.conftest import Alone
from tests.serving.fakes import SECONDS_A_TOKEN, Clock, drain, job_of, server
from thresher.core.plan import PruningPlan
from thresher.engine.cuda.ladder import rung_below
from thresher.engine.executor import AnySize
from thresher.engine.inputs import Tables
from thresher.serving.computing import Computing
from thresher.serving.pace import Pace
from thresher.tokenizing.tokens import Tokens

SIZES = [(512, 64), (384, 64), (256, 64), (64, 64), (1, 64)]


class Slow:
    """An executor that takes a second to prepare for a size."""

    in_flight, stalls, tables = 3, 0, Tables(positions=64, words=100, types=None)
    plan = PruningPlan.dense(1)

    def __init__(self, clock: Clock, sizes: list[tuple[int, int]]) -> None:
        self.clock, self.sizes, self.ready, self.caught_up = clock, sizes, list[int](), 0

    def typical_sizes(self, longest: int) -> list[tuple[int, int]]:
        return self.sizes

    def warm_up(self, batches: list[Tokens]) -> None:
        self.clock.now += 1.0
        self.stalls += 1
        self.ready += [tokens.total for tokens in batches]

    def catch_up(self) -> None:
        self.caught_up += 1


def computing(*executors: Any) -> Computing:
    first, *others = (SimpleNamespace(executor=each, max_length=64) for each in executors)
    found = Computing(first, "run", {})  # type: ignore[arg-type]  # a stand-in
    found._at = dict(enumerate(others))  # type: ignore[arg-type]  # by their dials
    return found


def test_all_sizes_of_all_engines_are_prepared() -> None:
    clock = Clock()
    engines = [Slow(clock, SIZES), Slow(clock, SIZES[:2])]
    found = computing(*engines)
    assert found.warm_up(100.0, clock=clock) == {"sizes": 7, "ready": 7, "seconds": 7.0}
    assert [each.ready for each in engines] == [[64 * texts for texts, _ in SIZES], [64 * 512, 64 * 384]]
    assert found.stalls == 7
    found.catch_up()
    assert [each.caught_up for each in engines] == [1, 1]


def test_it_ends_in_time_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    engine = Slow(clock, SIZES)
    assert computing(engine).warm_up(2.5, clock=clock) == {"sizes": 5, "ready": 3, "seconds": 3.0}
    assert engine.ready == [64 * texts for texts, _ in SIZES[:3]], "those that are needed most"
    assert "warm-up ended early" in caplog.text
    assert computing(Slow(clock, SIZES)).warm_up(0.0, clock=clock)["ready"] == 0


def test_a_processor_has_nothing_to_prepare(alone: Alone) -> None:
    clock = Clock()
    engine = Slow(clock, AnySize().typical_sizes(512))
    assert computing(engine).warm_up(10.0, clock=clock) == {"sizes": 0, "ready": 0, "seconds": 0.0}
    assert engine.ready == [] and engine.sizes == [(16, 64)]
    (run,) = alone("classes").get("/info").json["runs"]
    assert run["warm_up"] == {"sizes": 0, "ready": 0, "seconds": 0.0}


def test_the_run_catches_up_while_nobody_waits(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    run = alone("classes").house.runs["classes"]
    called = []
    monkeypatch.setattr(run.computing, "catch_up", lambda: called.append("catch up"))
    monkeypatch.setattr(run.drift, "look", lambda: called.append("look"))
    run.worker.idle()
    assert called[:2] == ["catch up", "look"]


def test_a_batch_ends_where_a_size_does() -> None:
    pace = Pace(1e-6, batch_seconds=0.02, most_tokens=32_768, fitting=rung_below)
    assert pace.budget == 16_384, "not 20,000, which would have the room of 24,576"
    assert Pace(1e-7, batch_seconds=0.02, most_tokens=32_768, fitting=rung_below).budget == 32_768
    assert Pace(1.0, batch_seconds=0.02, most_tokens=32_768, fitting=rung_below).budget == 256


def test_a_batch_that_captured_says_nothing_of_the_pace() -> None:
    clock = Clock()
    queue, worker, engine = server(clock)
    finish = engine.finish

    def one_batch(*, seconds: float, stalls: int) -> float:
        """What a token takes as the queue sees it after a batch that took so much longer."""

        def longer(begun: Any) -> Any:
            clock.now += seconds
            engine.stalls += stalls
            return finish(begun)

        engine.finish = longer  # type: ignore[method-assign]  # as if it captured
        queue.put(job_of(clock, *[100] * 10, timeout=1000.0))
        drain(worker)
        return queue.pace.seconds_per_token

    assert one_batch(seconds=60.0, stalls=2) == pytest.approx(SECONDS_A_TOKEN)
    assert one_batch(seconds=60.0, stalls=1) == pytest.approx(SECONDS_A_TOKEN)
    engine.stalls += 5  # while nobody waited: the next batch counts
    assert one_batch(seconds=60.0, stalls=0) > 1.5 * SECONDS_A_TOKEN
