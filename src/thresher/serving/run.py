"""A run that is served: its engine, queue and thread, and the way from a request's texts to their answers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thresher.engine.engine import Engine
from thresher.errors import ConfigError
from thresher.serving.computing import Computing
from thresher.serving.crossing import Crossing
from thresher.serving.drift import DriftGuard
from thresher.serving.errors import (
    Abandoned,
    BadRequest,
    BadText,
    EmptyRequest,
    Expired,
    Failed,
    Overloaded,
    ServingError,
    Unhealthy,
)
from thresher.serving.gears import Gear, GearBox, gears_within, read_measured
from thresher.serving.job import Job
from thresher.serving.pace import Pace
from thresher.serving.queue import Limits, WorkQueue
from thresher.serving.turns import Turns
from thresher.serving.worker import Batch, Worker
from thresher.tokenizing.tokens import Tokens
from thresher.tokenizing.windows import Windows
from thresher.workplace import expanded

# Characters that are tokenized at once; more are handed to a thread, so that others need not wait. A tokenizer that
# remembers words is Python and fast: a thread would only take turns with the event loop for the interpreter.
QUICK, QUICK_REMEMBERED = 4096, 16_384
CHARACTERS_A_TOKEN = 8  # at most, of ordinary text: what a request has at least, before it is tokenized
READING = 64 * 2**20  # characters that may wait for the tokenizer, of all requests together


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run is served. `degrade`: whether the dial may go up under load, down to `least_agreement` with the dense
    model; `on_drift`: what happens when texts are not like those of the calibration, warn or dense; `warm_up_s`: how
    long an engine may prepare for sizes of batches before it serves."""

    path: str
    name: str
    device: str = "auto"
    dtype: str = "auto"
    dial: float = 1.0
    max_length: int | None = None
    means: str | None = None
    threads: int | None = None
    batch_seconds: float = 0.1
    degrade: bool = False
    least_agreement: float = 0.95
    on_drift: str = "warn"
    shadow: float = 0.0
    warm_up_s: float = 120.0
    limits: Limits = Limits()

    @property
    def engine_options(self) -> dict[str, Any]:
        names = ("device", "dtype", "dial", "max_length", "means", "threads")
        return {name: getattr(self, name) for name in names} | {"steady": True}


@dataclass(frozen=True)
class Ask:
    """How a request wants its texts computed. hung_up: done when nobody waits for the answer any more."""

    timeout_s: float | None = None
    degrade: bool = True
    prompt_name: str | None = None
    truncate: bool = True
    hung_up: "Callable[[], asyncio.Future[Any]] | None" = None


@dataclass(frozen=True)
class Served:
    """Answers, and where their time went, in seconds. `dial`: the highest that any text was computed at."""

    answers: Any  # Answers, or of a head that reads every token, TokenAnswers of the windows
    dial: float
    characters: int
    tokenizing_s: float
    queue_s: float
    engine_s: float
    windows: Windows | None = None

    @property
    def tokens(self) -> int:
        return int(self.answers.tokens.sum())

    @property
    def kept_ratio(self) -> float:
        """The mean share of its tokens that a layer passes on."""
        return float(kept_ratios(self.answers).mean())


def kept_ratios(answers: Any) -> Any:
    """(texts,) the share of a text's tokens that layers passed on, in their mean."""
    return answers.kept.sum(axis=1) / np.maximum(1, answers.tokens * answers.kept.shape[1])


class ServedRun:
    """One run by its name. `watchers` see every batch."""

    def __init__(
        self,
        setting: Setting,
        engine: Engine,
        *,
        turns: Turns | None = None,
        tokenizers: ThreadPoolExecutor | None = None,
        watchers: Sequence[Callable[["ServedRun", Batch], None]] = (),
    ) -> None:
        self.setting, self.engine, self.name = setting, engine, setting.name
        self.loaded_at = time.time()
        self.watchers = list(watchers)
        self.computing = Computing(engine, setting.path, setting.engine_options)
        measured = read_measured(Path(expanded(setting.path)))
        gears: tuple[Gear, ...] = ()
        if setting.degrade:
            gears = gears_within(measured, least_agreement=setting.least_agreement, name=setting.name)
        executor = engine.executor
        pace = Pace(
            self.computing.seconds_per_token(),
            batch_seconds=setting.batch_seconds,
            most_tokens=executor.token_budget,
            fitting=executor.fitting,
        )
        self.gears = GearBox(gears)
        best = max(gear.speed for gear in self.gears.gears)
        self.queue = WorkQueue(pace, setting.limits, by_length=executor.by_length, best_speed=best)
        known = measured if setting.dial == 1 else None  # it was measured at dial 1
        dense = setting.on_drift == "dense"
        if dense and known is None:
            raise ConfigError(
                f"on-drift = dense has nothing to compare {setting.name} with; measure it at dial 1 first: "
                f"thresher bench {setting.name} --gears"
            )
        self.drift = DriftGuard(
            known, self.computing, share=setting.shadow, falls_back=dense, fell_back=self._without_gears
        )
        # What may be needed in the middle of work is made before it.
        for needed in (*(gear.dial for gear in gears), *([0.0] if setting.shadow or self.drift.falls_back else [])):
            self.computing.at(needed)
        self.warm_up = self.computing.warm_up(setting.warm_up_s)
        self.worker = Worker(
            self.drift,
            self.queue,
            gears=self.gears,
            turns=turns if executor.on_cores else None,
            watch=self._watch,
            idle=self._beside,
        )
        self._tokenizers = tokenizers or ThreadPoolExecutor(1, thread_name_prefix="tokenizing")
        self.calls = set[Any]()  # whoever asks of it, or will ask more, until it is answered
        self._reads = dict[Future[Any], int]()
        self._crossing: Crossing | None = None
        remembers = getattr(engine.tokenizing.reader, "memory", None) is not None
        self._quick = QUICK_REMEMBERED if remembers else QUICK

    @staticmethod
    def load(setting: Setting, **more: Any) -> "ServedRun":
        """Load and warm up; any error is the loader's."""
        if setting.on_drift not in ("warn", "dense"):
            raise ConfigError(f"on_drift = {setting.on_drift!r} is not one of: warn, dense")
        if setting.degrade and setting.dial != 1:
            raise ConfigError(f"dial = {setting.dial:g} does not go with degrade, whose gears start at 1; leave it out")
        return ServedRun(setting, Engine.load(setting.path, **setting.engine_options), **more)

    def start(self) -> None:
        self.worker.start(self.name)

    def close(self) -> None:
        """Let nobody in any more; what waits is still computed."""
        self.queue.close()

    def problem(self, patience: float) -> str | None:
        """Why this run cannot answer, if it cannot; `patience`: seconds that an engine may be silent."""
        if self.worker.broken is not None:
            return f"the engine gave up: {self.worker.broken}"
        if self.worker.silent > patience:
            return f"the engine has given no sign of life for {self.worker.silent:.0f} s"
        return None

    def check_health(self, patience: float) -> None:
        if (problem := self.problem(patience)) is not None:
            raise Unhealthy(problem)

    def least_tokens(self, items: Sequence[Any], characters: int) -> int:
        """What texts have at least, before they are tokenized."""
        least = max(len(items), characters // CHARACTERS_A_TOKEN)
        if self.engine.head.reads == "tokens":  # these read all of a text, however long
            return least
        return min(least, len(items) * self.engine.max_length)

    async def compute(self, items: Sequence[Any], ask: Ask, *, patience: float) -> Served:
        """All answers of a request, or one ServingError. items: texts, pairs of texts, or lists of token ids."""
        if not items:
            raise EmptyRequest("no text is given; give at least one")
        self.check_health(patience)
        arrived = time.monotonic()
        limits = self.setting.limits
        deadline = arrived + min(ask.timeout_s or limits.timeout_s, limits.timeout_s)
        characters, longest = characters_of(items), self.engine.max_length
        self.queue.check(self.least_tokens(items, characters), deadline, degrade=ask.degrade)
        found = await self.read(items, characters, ask.prompt_name, deadline=deadline)
        windows = found if isinstance(found, Windows) else None
        tokens = found.tokens if isinstance(found, Windows) else found
        check_texts(tokens if windows is None else windows, truncate=ask.truncate, longest=longest)
        read = time.monotonic()
        job = await self._done(tokens, arrived, deadline, ask)
        answers, began, finished = job.answers(), job.began or read, job.finished or read
        if answers.problems:
            number = min(answers.problems)
            raise Failed(f"text {number} cannot be computed: {answers.problems[number]}")
        dial = self._dial(max(job.dials))
        return Served(answers, dial, characters, read - arrived, began - read, finished - began, windows)

    async def read(
        self, items: Sequence[Any], characters: int, prompt_name: str | None = None, *, deadline: float
    ) -> Any:
        """Tokens of a request's texts, or their windows."""
        work = partial(self._read, items, prompt_name)
        return await self.tokenizing(characters, work, deadline=deadline, quick=self._quick)

    async def tokenizing(self, characters: int, work: Callable[[], Any], *, deadline: float, quick: int = QUICK) -> Any:
        """Do what a tokenizer does to so many characters, of more than `quick` in another thread."""
        if characters <= quick:
            return work()
        if self.reading + characters > READING:
            raise Overloaded("too many long texts wait for the tokenizer; try again", retry_after=1.0)
        reads = self._tokenizers.submit(work)
        self._reads[reads] = characters
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.wrap_future(reads)
        except TimeoutError as error:  # what has begun goes on, and counts for as long as it does
            raise Expired(f"{characters} characters were not tokenized in time; send fewer, or try again") from error

    @property
    def reading(self) -> int:
        """Characters that the tokenizer has, or that wait for it."""
        self._reads = {one: characters for one, characters in self._reads.items() if not one.done()}
        return sum(self._reads.values())

    def _read(self, items: Sequence[Any], prompt_name: str | None) -> Tokens | Windows:
        try:
            if self.engine.head.reads == "tokens":
                return self.engine.windows(items)
            if isinstance(items[0], list):
                if prompt_name is not None:
                    raise BadRequest("prompt_name does not go with token ids; leave it out, or send texts")
                return self.engine.read_ids(items)
            return self.engine.read(items, prompt_name=prompt_name)
        except ConfigError as error:
            raise BadRequest(str(error)) from error

    async def _done(self, tokens: Tokens, arrived: float, deadline: float, ask: Ask) -> Job:
        """A job that was computed; the deadline holds even where the engine hangs."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        if self._crossing is None or self._crossing.loop is not loop:
            self._crossing = Crossing(loop, self.queue.wake)
        crossing = self._crossing

        def hung_up(future: "asyncio.Future[Any]") -> None:
            if not future.cancelled():
                self.queue.end(job, Abandoned("hung up"))

        def ended(job: Job) -> None:
            crossing.land(over)

        job = Job(tokens, arrived, deadline, degrade=ask.degrade, ended=ended)
        self.queue.put(job)
        crossing.came()
        late = Expired(f"not computed within {deadline - arrived:.1f} s; try again, or send less")
        timer = loop.call_at(loop.time() + deadline - time.monotonic(), self.queue.end, job, late)
        gone = ask.hung_up() if ask.hung_up is not None else None
        if gone is not None:
            gone.add_done_callback(hung_up)
        try:
            await over
        finally:
            timer.cancel()
            if gone is not None:
                gone.cancel()
            self.queue.end(job, Abandoned("nobody waits any more"))  # where this was cancelled
        if job.error is not None:
            raise job.error
        return job

    @property
    def dial(self) -> float:
        """Of the gear that is on."""
        return self._dial(self.gears.gear.dial)

    def _dial(self, gear: float) -> float:
        return 0.0 if self.drift.dense else gear if gear != 1 else self.setting.dial

    def _without_gears(self) -> None:
        """All is dense now: no gear is faster, and nobody is let in as if one were."""
        self.gears.stay()
        self.queue.best_speed = 1.0

    def _beside(self) -> None:
        """While nobody waits."""
        self.computing.catch_up()
        self.drift.look()

    def _watch(self, batch: Batch) -> None:
        self.drift.add(batch)
        for watcher in self.watchers:
            watcher(self, batch)


def characters_of(items: Sequence[Any]) -> int:
    """Of texts and pairs; of lists of token ids, these."""
    return sum(sum(map(len, item)) if isinstance(item, tuple) else len(item) for item in items)


def check_texts(tokens: Tokens | Windows, *, truncate: bool, longest: int) -> None:
    """One text that cannot be read is the whole request's error: it is answered whole or not at all."""
    if tokens.problems:
        number = min(tokens.problems)
        problem = tokens.problems[number]
        kind: type[ServingError] = BadText if problem.kind in ("unread", "nothing") else BadRequest
        raise kind(f"text {number}: {problem.says}")
    if isinstance(tokens, Tokens) and not truncate and tokens.truncated.any():
        number = int(tokens.truncated.argmax())
        raise BadRequest(f"text {number} has more than {longest} tokens, and truncate is false; shorten it")
