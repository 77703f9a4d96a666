"""A run's engine as the worker wants it: batches at any dial, the dense model, and which layer dropped which token."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from thresher.engine.answers import Answers
from thresher.engine.engine import Engine
from thresher.engine.executor import made_up_texts
from thresher.engine.packed import PackedExecutor
from thresher.engine.token_answers import TokenAnswers
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens

SAID_EVERY = 10  # sizes that a warm-up has prepared
log = logging.getLogger("thresher.serving")


class Computing:
    """One engine; others with the same weights, at other dials, come and stay when they are asked for."""

    def __init__(self, engine: Engine, path: str, options: dict[str, Any]) -> None:
        """options: what the engine was loaded with."""
        self.engine, self._path, self._options = engine, path, options
        self.in_flight = engine.executor.in_flight
        self._on_cpu: dict[str, Any] = {"device": "cpu", "means": options.get("means")}
        self._at: dict[float, Engine] = {}
        self._explaining: Engine | None = None
        self._making = threading.Lock()

    def begin(self, tokens: Tokens, dial: float | None) -> Any:
        engine = self.engine if dial is None else self.at(dial)
        return engine, engine.begin(tokens)

    def finish(self, begun: Any) -> Answers | TokenAnswers:
        engine, group = begun
        found: Answers | TokenAnswers
        found = engine.finish_tokens(group) if engine.head.reads == "tokens" else engine.finish(group)
        return found

    def at(self, dial: float) -> Engine:
        """The engine at another dial. For dial 0 weights may have to be loaded once more."""
        if dial == self.engine.executor.plan.dial:
            return self.engine
        with self._making:
            if dial not in self._at:
                self._at[dial] = _at_dial(self.engine, dial, self._path, self._options)
            return self._at[dial]

    def explaining(self, dial: float) -> Engine:
        """An engine on the CPU, which knows which token each layer dropped; on a GPU nobody counts them one by one."""
        executor = self.engine.executor
        if isinstance(executor, PackedExecutor):
            stays = dial in (0, executor.plan.dial, *self._at)  # clients may ask for any, and not all of them stay
            return self.at(dial) if stays else _at_dial(self.engine, dial, self._path, self._options)
        with self._making:
            if self._explaining is None:
                self._explaining = Engine.load(self._path, **self._on_cpu, workers=0)
            return _at_dial(self._explaining, dial, self._path, self._on_cpu)

    @property
    def stalls(self) -> int:
        """Batches so far that had to wait for something made for their size."""
        return sum(engine.executor.stalls for engine in self._engines)

    @property
    def _engines(self) -> list[Engine]:
        return [self.engine, *list(self._at.values())]

    def catch_up(self) -> None:
        """While nobody waits: a part of what batches had to do without."""
        for engine in self._engines:
            engine.executor.catch_up()

    def warm_up(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
        """Prepare all engines for the sizes of batches that will come, as far as so many seconds go; how far that
        was. Where every size is the same to an engine, there is nothing to do."""
        began = clock()
        sizes = [(each.executor, each.executor.typical_sizes(each.max_length)) for each in self._engines]
        work = [(executor, size) for executor, several in sizes if len(several) > 1 for size in several]
        facts: dict[str, Any] = {"sizes": len(work), "ready": 0, "seconds": 0.0}
        for executor, size in work:
            if clock() - began >= seconds:
                break
            executor.warm_up(made_up_texts(executor, [size]))
            facts |= {"ready": facts["ready"] + 1, "seconds": round(clock() - began, 1)}
            if facts["ready"] % SAID_EVERY == 0 or facts["ready"] == len(work):
                log.info("warm-up", extra={"facts": {"run": self._path, **facts}})
        if facts["ready"] < len(work):
            log.warning("warm-up ended early", extra={"facts": {"run": self._path, **facts}})
        return facts

    def seconds_per_token(self) -> float:
        """Measured with made-up texts, after a first batch that does not count."""
        executor = self.engine.executor
        (tokens,) = made_up_texts(executor, executor.typical_sizes(self.engine.max_length)[:1])
        executor.warm_up([tokens])
        began = time.perf_counter()
        executor.compute(tokens)
        return (time.perf_counter() - began) / tokens.total


def _at_dial(engine: Engine, dial: float, path: str, options: dict[str, Any]) -> Engine:
    try:
        return engine.at_dial(dial)
    except ModelError:  # weights were converted for layers that leave first tokens alone
        return Engine.load(path, **{**options, "dial": dial})
