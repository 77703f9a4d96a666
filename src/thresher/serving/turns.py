"""One thread computes for all engines of a processor, one batch after the other.

Two batches at once would each take longer than one after the other. And every thread that computes keeps helpers of its
own (see threads.py): those of several engines' threads would be more than there are cores.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

LONGEST_TURN_S = 5.0  # of an engine whose processor others wait for: batches take a tenth of a second
LOOK_S = 0.5  # between two looks at who computes
T = TypeVar("T")


class Turns:
    """Whose turn takes longer than `patience` seconds is left alone with the thread: from then on the others compute in
    a new one, where it waits like them when it comes back."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience, self._clock = min(patience, LONGEST_TURN_S), clock
        self._line: _Line | None = None  # a thread has as many cores as torch was told before it began
        self._changing = threading.Lock()

    def take(self, work: Callable[[], T], beat: Callable[[], None] = lambda: None) -> tuple[T, float]:
        """What `work` gives, and the seconds that somebody overdue was waited for. `beat` is called while others
        compute."""
        lost, began = 0.0, self._clock()
        line, turn = self._join(work)
        while not wait([turn], min(LOOK_S, self.patience)).done:
            if turn.running():
                continue
            beat()
            self._leave_behind(line)
            if line is not self._line and turn.cancel():
                now = self._clock()
                lost, began = lost + now - began, now
                line, turn = self._join(work)
        found: T = turn.result()
        return found, lost

    def close(self) -> None:
        """Nothing stays of the thread when it has computed what it was given; who comes later gets another one."""
        with self._changing:
            if self._line is not None:
                self._line.end()
            self._line = None

    def _join(self, work: Callable[[], Any]) -> "tuple[_Line, Future[Any]]":
        with self._changing:
            self._line = self._line or _Line(self._clock)
            return self._line, self._line.join(work)

    def _leave_behind(self, line: "_Line") -> None:
        with self._changing:
            if line is self._line and self._clock() - line.since > self.patience:
                line.end()
                self._line = None


class _Line:
    """A thread, and what it is to compute. since: when it began with what it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.since, self._clock = clock(), clock
        self._works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="computing", daemon=True).start()

    def join(self, work: Callable[[], Any]) -> "Future[Any]":
        turn: Future[Any] = Future()
        self._works.put((turn, work))
        return turn

    def end(self) -> None:
        self._works.put(None)

    def _run(self) -> None:
        while (one := self._works.get()) is not None:
            self._compute(*one)
            del one  # or else the last batch would stay for as long as there is no other

    def _compute(self, turn: "Future[Any]", work: Callable[[], Any]) -> None:
        self.since = self._clock()
        if not turn.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:  # whoever waits for it must know, and the others are not concerned
            turn.set_exception(error)
        else:
            turn.set_result(found)
