"""A clock that stands until it is told to go on, and an engine whose batches take as long as they have tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thresher.core.heads import Head
from thresher.engine.answers import Answers
from thresher.serving.job import Job
from thresher.serving.pace import Pace
from thresher.serving.queue import Limits, WorkQueue
from thresher.serving.worker import Worker
from thresher.tokenizing.tokens import Tokens

SECONDS_A_TOKEN = 0.001


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Answers with each text's first token id; a batch takes SECONDS_A_TOKEN for each token, over `speed(dial)`."""

    in_flight = 1

    def __init__(self, clock: Clock, *, speed: Callable[[float], float] = lambda dial: 1.0) -> None:
        self.clock, self.speed = clock, speed
        self.stalls = 0
        self.batches: list[list[int]] = []  # the first token of each text
        self.lengths: list[list[int]] = []
        self.dials: list[float | None] = []
        self.fails: Callable[[list[int]], Exception | None] = lambda first: None

    def begin(self, tokens: Tokens, dial: float | None) -> Any:
        first = [int(tokens.ids[start]) for start in tokens.starts[:-1]]
        self.batches.append(first)
        self.lengths.append(tokens.lengths.tolist())
        self.dials.append(dial)
        return tokens, dial, first

    def finish(self, begun: Any) -> Answers:
        tokens, dial, first = begun
        if (error := self.fails(first)) is not None:
            raise error
        self.clock.now += tokens.total * SECONDS_A_TOKEN / self.speed(dial or 1.0)
        outputs = np.array(first, np.float32)[:, None]
        kept = np.ones((len(tokens), 2), np.int32)
        return Answers(Head(means="value"), (), outputs, kept, tokens.lengths, tokens.truncated)


def job_of(
    clock: Clock,
    *lengths: int,
    first: int = 0,
    timeout: float = 10.0,
    degrade: bool = True,
    arrived: float | None = None,
) -> Job:
    """A request of texts of these lengths, whose first tokens are `first`, `first` + 1 and so on."""
    tokens = Tokens.of([[first + number] * length for number, length in enumerate(lengths)])
    begins = clock.now if arrived is None else arrived
    return Job(tokens, begins, begins + timeout, degrade=degrade)


def server(
    clock: Clock, *, budget_s: float = 1.0, limits: Limits | None = None, **more: Any
) -> tuple[WorkQueue, Worker, FakeEngine]:
    """A queue whose batches have `budget_s` / SECONDS_A_TOKEN tokens, and the worker of a fake engine."""
    pace = Pace(SECONDS_A_TOKEN, batch_seconds=budget_s, most_tokens=100_000)
    best = more.pop("best_speed", 1.0)
    limits = limits or Limits(timeout_s=10.0, age_s=2.0)
    queue = WorkQueue(pace, limits, by_length=True, clock=clock, best_speed=best)
    engine = FakeEngine(clock, speed=more.pop("speed", lambda dial: 1.0))
    return queue, Worker(engine, queue, clock=clock, **more), engine


def drain(worker: Worker) -> int:
    """Let it work until there is nothing left; how many steps that were."""
    steps = 0
    while worker.step():
        steps += 1
        assert steps < 10_000
    return steps


def outputs(jobs: Sequence[Job]) -> list[list[float]]:
    return [job.answers().outputs[:, 0].tolist() for job in jobs]
