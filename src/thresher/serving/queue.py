"""What waits for the engine: who is let in, whose turn it is, and who need not be computed any more."""

import bisect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from thresher.engine.windows import batches_of_lengths
from thresher.serving.errors import EmptyRequest, Expired, Overloaded, ServingError, TooLarge, Unhealthy
from thresher.serving.job import Job, Waiting
from thresher.serving.pace import Pace

LOOK_AHEAD = 4  # batches' worth of texts that a batch is chosen from
MANY = 1024  # dead texts that are swept out at once


@dataclass(frozen=True)
class Limits:
    """timeout_s: how long a request may take, unless it asks for less; age_s: after so long no newcomer is preferred;
    queue_tokens: the most that waits, whatever the pace; margin: the part of its time that a request is let in for."""

    timeout_s: float = 30.0
    age_s: float = 5.0
    queue_tokens: int = 4_000_000
    margin: float = 0.8


class WorkQueue:
    """Texts of many requests, by when they are due.

    A text is due when its request would have it done alone: at once, or for the later texts of a large request after
    those before it. So a small request does not wait for all of a large one, and after `age_s` the large one does not
    wait for newcomers. Every batch has the text that is most due, and others of about its length.
    """

    def __init__(
        self,
        pace: Pace,
        limits: Limits,
        *,
        by_length: bool,
        clock: Callable[[], float] = time.monotonic,
        best_speed: float = 1.0,
    ) -> None:
        """best_speed: of the fastest dial that the server may go to."""
        self.pace, self.limits, self.by_length, self.clock, self.best_speed = pace, limits, by_length, clock, best_speed
        self._texts: list[Waiting] = []
        self._changed = threading.Condition()
        self._serial = self._dead = 0
        self.waiting = self.flying = 0  # tokens
        self.closed = False

    @property
    def load(self) -> int:
        """Tokens that wait or are computed."""
        return self.waiting + self.flying

    def check(self, tokens: int, deadline: float, *, degrade: bool) -> None:
        """Refuse what would not be done in time. `tokens` may be a guess, before texts are tokenized in vain.

        Only what waits is a reason to come again later. An engine with nothing to do is given what it could do at the
        pace it began with: one that was held up for a while finds out by computing that it is no longer slow.
        """
        if self.closed:
            raise Unhealthy("the server is shutting down, or the run is replaced; try again")
        speed = self.best_speed if degrade else 1.0
        allowed = self.limits.margin * (deadline - self.clock())
        if allowed <= 0:
            raise Expired("the time of the request was over before it was let in; try again, or send less")
        alone = self.pace.hopeful_wait(tokens, speed=speed)
        all_of_it = self.pace.careful_wait(self.load + tokens, speed=speed)
        if tokens > self.limits.queue_tokens or alone > allowed:
            raise TooLarge(
                f"{tokens} tokens take about {alone:.1f} s, and {allowed:.1f} s are allowed; send fewer "
                "texts at a time, or start the server with a longer --timeout"
            )
        if (self.load and all_of_it > allowed) or self.waiting + tokens > self.limits.queue_tokens:
            over = max(all_of_it - allowed, alone)
            raise Overloaded(f"{self.load} tokens wait already, about {all_of_it:.1f} s; try again", retry_after=over)

    def put(self, job: Job) -> None:
        """Let all of a request in, or none of it. Who waits in `take` is told by `wake`."""
        if not len(job.tokens):
            raise EmptyRequest("there is nothing to compute; give at least one text")  # it would never end
        with self._changed:
            self.check(job.tokens.total, job.deadline, degrade=job.degrade)
            before = 0
            found = []
            for number, length in enumerate(job.tokens.lengths.tolist()):
                due = job.arrived + min(self.pace.wait(before), self.limits.age_s)
                found.append(Waiting(due, self._serial, job, number, length))
                self._serial += 1
                before += length
            self._insert(found)
            self.waiting += before

    def wake(self) -> None:
        """Something may have come for who waits in `take`."""
        with self._changed:
            self._changed.notify()

    def take(self, budget: int, *, wait: float = 0.0, apart: bool = False) -> list[Waiting]:
        """The next batch, of at most `budget` tokens or of one text; none where nothing came in `wait` seconds.

        apart: texts of requests that may be degraded, and others, do not share a batch.
        """
        with self._changed:
            if not self._texts and not self.closed and wait:
                self._changed.wait(wait)
            window = self._window(LOOK_AHEAD * budget)
            if not window:
                return []
            alike = [text for text in window if not apart or text.job.degrade == window[0].job.degrade]
            lengths = np.array([text.length for text in alike], np.int64)
            batches = batches_of_lengths(lengths, budget, by_length=self.by_length)
            chosen = [alike[number] for number in next(batch for batch in batches if 0 in batch).tolist()]
            gone = {text.serial for text in chosen}
            self._texts[: len(window)] = [text for text in window if text.serial not in gone]
            for text in chosen:
                text.job.waiting -= text.length
            tokens = sum(text.length for text in chosen)
            self.waiting -= tokens
            self.flying += tokens
            return chosen

    def landed(self, texts: list[Waiting]) -> None:
        """These were computed, well or not."""
        with self._changed:
            self.flying -= sum(text.length for text in texts)

    def end(self, job: Job, error: ServingError | None = None) -> None:
        """A request is over: answered, failed, or nobody waits for it any more. What of it waits is not computed."""
        with self._changed:
            if job.over:
                return
            job.over, job.error, job.finished = True, error, self.clock()
            self._dead += len(job.tokens) if job.waiting else 0
            self.waiting -= job.waiting
            job.waiting = 0
            if self._dead > max(MANY, len(self._texts) // 2):
                self._texts = [text for text in self._texts if not text.job.over]
                self._dead = 0
        job.ended(job)

    def close(self, error: ServingError | None = None) -> None:
        """Let nobody in any more; with an error, those who wait get it."""
        with self._changed:
            self.closed = True
            left = list(dict.fromkeys(text.job for text in self._texts)) if error is not None else []
            self._changed.notify_all()
        for job in left:
            self.end(job, error)

    def _insert(self, texts: list[Waiting]) -> None:
        if not self._texts or texts[0] > self._texts[-1]:
            self._texts += texts
        elif len(texts) == 1:
            bisect.insort(self._texts, texts[0])
        else:
            self._texts = sorted(self._texts + texts)

    def _window(self, tokens: int) -> list[Waiting]:
        """The texts that are most due, up to so many tokens, which stand first then; the dead among them are gone."""
        now, found, looked, expired = self.clock(), list[Waiting](), 0, dict[Job, None]()
        for text in self._texts:
            if tokens <= 0:
                break
            looked += 1
            if text.job.over:
                continue
            if text.job.deadline <= now:
                expired[text.job] = None
                continue
            found.append(text)
            tokens -= text.length
        self._texts[:looked] = found
        for job in expired:
            self.end(job, Expired(f"not computed within {job.deadline - job.arrived:.1f} s; try again, or send less"))
        return found
