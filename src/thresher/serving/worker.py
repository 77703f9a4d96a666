"""The thread of one run's engine: takes batches from the queue, computes them, hands answers out, and says it lives."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from thresher.engine.answers import Answers
from thresher.engine.token_answers import TokenAnswers
from thresher.errors import ModelError
from thresher.serving.errors import Failed, ServingError, Unhealthy
from thresher.serving.gears import Gear, GearBox
from thresher.serving.job import Job, Waiting, tokens_of
from thresher.serving.queue import WorkQueue
from thresher.serving.turns import Turns
from thresher.text import first_line
from thresher.tokenizing.tokens import Tokens

IDLE_S = 0.5  # between two signs of life of an engine that has nothing to do
log = logging.getLogger("thresher.serving")
T = TypeVar("T")


class Computes(Protocol):
    """What computes batches, on whatever device; a dial of None is the run's own."""

    in_flight: int

    @property
    def stalls(self) -> int:
        """Batches so far that had to wait for something made for their size: a graph, or a compiled kernel."""

    def begin(self, tokens: Tokens, dial: float | None) -> Any:
        """Launch texts; what is given back is for `finish`."""

    def finish(self, begun: Any) -> Answers | TokenAnswers:
        """Their answers, in their order."""


@dataclass(frozen=True)
class Batch:
    """What was computed together, for those who watch. `seconds`: of the engine, for this batch alone."""

    texts: list[Waiting]
    tokens: Tokens
    answers: Answers | TokenAnswers
    gear: Gear
    seconds: float
    waited: list[float]


@dataclass(frozen=True)
class _Flying:
    texts: list[Waiting]
    tokens: Tokens
    gear: Gear
    begun: Any
    crowded: bool  # whether others waited behind it


class Worker:
    """Between one queue and one engine. `ended` is told of all requests that a batch ended, `watch` of the batch."""

    def __init__(
        self,
        computes: Computes,
        queue: WorkQueue,
        *,
        gears: GearBox | None = None,
        turns: Turns | None = None,
        watch: Callable[[Batch], None] = lambda batch: None,
        idle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """idle: what may be done while nobody waits."""
        self.computes, self.queue, self.gears = computes, queue, gears or GearBox()
        self.turns, self.watch, self.idle, self.clock = turns, watch, idle, clock
        self._flying: deque[_Flying] = deque()
        self._last = clock()  # when the batch before was finished
        self._stalls = computes.stalls  # at that time
        self._beat, self._idle = clock(), True
        self.broken: str | None = None
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Whether it ended in time, once its queue is closed."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def silent(self) -> float:
        """Seconds without a sign of life."""
        return self.clock() - self._beat

    def step(self, *, wait: float = 0.0) -> bool:
        """One turn of the loop; whether there was anything to do."""
        self._live()
        queue, box = self.queue, self.gears
        box.choose(queue.pace.wait(queue.load), queue.limits.timeout_s, self.clock())
        texts = queue.take(queue.pace.budget, wait=0.0 if self._flying else wait, apart=box.now > 0)
        self._live()
        if texts:
            self._begin(texts, box.gear if texts[0].job.degrade else box.gears[0])
        if self._flying and (not texts or len(self._flying) >= self.computes.in_flight):
            self._finish(self._flying.popleft())
            return True
        if not texts:
            self._idle = True
            self._beside(lambda: self._in_turn(self.idle))
        return bool(texts)

    def _run(self) -> None:
        try:
            while self.step(wait=IDLE_S) or not self.queue.closed or self.queue.load:
                pass
        except Exception as error:  # nothing computes any more: whoever waits must know
            self._give_up(first_line(error))

    def _live(self) -> None:
        self._beat = self.clock()

    def _begin(self, texts: list[Waiting], gear: Gear) -> None:
        now = self.clock()
        if self._idle:
            self._idle, self._last, self._stalls = False, now, self.computes.stalls
        for text in texts:
            text.job.began = now if text.job.began is None else text.job.began
            text.job.dials.add(gear.dial)
        tokens = tokens_of(texts)
        try:
            begun = self.computes.begin(tokens, gear.dial if gear.dial != 1 else None)
        except Exception as error:  # one batch that fails harms no other
            self._failed(texts, error)
            return
        self._flying.append(_Flying(texts, tokens, gear, begun, crowded=self.queue.waiting > 0))

    def _finish(self, flying: _Flying) -> None:
        try:
            answers, lost = self._in_turn(lambda: self.computes.finish(flying.begun))
        except Exception as error:
            self._failed(flying.texts, error)
            return
        now = self.clock()
        # From one batch to the next, with all that is done between them: that is what those who wait wait for.
        seconds, self._last = now - self._last - lost, now
        stalls, self._stalls = self._stalls, self.computes.stalls
        if stalls == self._stalls:  # or else the time is not one of computing
            self.queue.pace.add(flying.tokens.total, seconds, speed=flying.gear.speed, crowded=flying.crowded)
        self.queue.landed(flying.texts)
        self._hand_out(flying.texts, answers)
        waited = [(text.job.began or now) - text.job.arrived for text in flying.texts]
        batch = Batch(flying.texts, flying.tokens, answers, flying.gear, seconds, waited)
        self._beside(lambda: self.watch(batch))

    def _in_turn(self, work: Callable[[], T]) -> tuple[T, float]:
        """What it gives, and the seconds that another engine was waited for in vain."""
        return (work(), 0.0) if self.turns is None else self.turns.take(work, self._live)

    def _beside(self, work: Callable[[], object]) -> None:
        """What is not the engine's work must not be its end."""
        try:
            work()
        except Exception as error:
            log.error("watching failed", extra={"facts": {"error": type(error).__name__, "says": first_line(error)}})

    def _hand_out(self, texts: list[Waiting], answers: Answers | TokenAnswers) -> None:
        places: dict[Job, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(text.job, []).append(place)
        for job, mine in places.items():
            if not job.over and job.add([texts[place].number for place in mine], answers.take(mine)):
                self.queue.end(job)

    def _failed(self, texts: list[Waiting], error: Exception) -> None:
        """All requests of a batch get the error; a device that is gone is the end of all."""
        says = first_line(error)
        log.error("batch failed", extra={"facts": {"error": type(error).__name__, "texts": len(texts)}})
        self.queue.landed(texts)
        self._last = self.clock()
        self._end_all(texts, Failed(f"the batch failed: {says}"))
        if isinstance(error, ModelError):
            self._give_up(says)

    def _end_all(self, texts: list[Waiting], error: ServingError) -> None:
        for job in dict.fromkeys(text.job for text in texts):
            self.queue.end(job, error)

    def _give_up(self, why: str) -> None:
        self.broken = why
        log.error("engine gave up", extra={"facts": {"why": why}})
        for flying in self._flying:
            self.queue.landed(flying.texts)
            self._end_all(flying.texts, Unhealthy(f"the engine gave up: {why}"))
        self._flying.clear()
        self.queue.close(Unhealthy(f"the engine gave up: {why}; start the server anew"))
