"""A run's engine as the worker wants it: batches at any dial, the dense model, and which layer dropped which token."""

import threading
import time
from typing import Any

from thresher.engine.answers import Answers
from thresher.engine.engine import Engine
from thresher.engine.executor import made_up_texts
from thresher.engine.packed import PackedExecutor
from thresher.engine.token_answers import TokenAnswers
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens

TYPICAL = 64  # tokens of the texts that the first measurement is made with
SLICE_TOKENS = 1024  # of the first measurement on a CPU, where more tokens are not faster


class Computing:
    """One engine; others with the same weights, at other dials, come and stay when they are asked for."""

    def __init__(self, engine: Engine, path: str, options: dict[str, Any]) -> None:
        """options: what the engine was loaded with."""
        self.engine, self._path, self._options = engine, path, options
        self.in_flight = engine.executor.in_flight
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
        if isinstance(self.engine.executor, PackedExecutor):
            return self.at(dial)
        with self._making:
            if self._explaining is None:
                self._explaining = Engine.load(self._path, device="cpu", workers=0)
            return _at_dial(self._explaining, dial, self._path, {"device": "cpu"})

    def seconds_per_token(self) -> float:
        """Measured with made-up texts, after a first batch that does not count."""
        executor = self.engine.executor
        budget = executor.token_budget if self.in_flight > 1 else min(SLICE_TOKENS, executor.token_budget)
        length = min(TYPICAL, self.engine.max_length)
        (tokens,) = made_up_texts(executor.tables, [(max(1, budget // length), length)])
        executor.warm_up([tokens])
        began = time.perf_counter()
        executor.compute(tokens)
        return (time.perf_counter() - began) / tokens.total


def _at_dial(engine: Engine, dial: float, path: str, options: dict[str, Any]) -> Engine:
    try:
        return engine.at_dial(dial)
    except ModelError:  # weights were converted for layers that leave first tokens alone
        return Engine.load(path, **{**options, "dial": dial})
