"""All runs of a server by their names: who answers what, who is well, and how one is replaced while others ask."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from thresher.errors import ConfigError, is_failure
from thresher.serving.errors import UnknownModel, WrongRoute
from thresher.serving.run import ServedRun, Setting
from thresher.serving.threads import await_in_passing, in_passing
from thresher.serving.turns import Turns
from thresher.serving.worker import Batch
from thresher.text import first_line, shown

log = logging.getLogger("thresher.serving")
INSTEAD = {
    "classes": "/predict or /classify",
    "labels": "/predict or /classify",
    "value": "/predict, or /rerank for a reranker",
    "score": "/rerank, /v2/rerank or /score",
    "embedding": "/embed or /v1/embeddings",
    "span": "/answer",
    "tags": "/tag",
}


class House:
    """Runs are loaded at once, and threads started by `start`. patience: seconds that an engine may be silent."""

    def __init__(
        self,
        settings: Sequence[Setting],
        *,
        patience: float = 30.0,
        load: Callable[..., ServedRun] = ServedRun.load,
    ) -> None:
        names = [setting.name for setting in settings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not settings or twice:
            what = f"the name {twice[0]} is given to two runs" if twice else "no run is given"
            raise ConfigError(f"{what}; give each run a name of its own: NAME=PATH")
        self.patience, self._load = patience, load
        self._shared: dict[str, Any] = {
            "turns": Turns(patience),
            "tokenizers": ThreadPoolExecutor(2, thread_name_prefix="tokenizing"),
            "watchers": [self._watch],
        }
        self.watchers: list[Callable[[ServedRun, Batch], None]] = []
        self.runs = in_passing(lambda: {setting.name: load(setting, **self._shared) for setting in settings})
        self.aside = asyncio.Lock()  # what is computed beside the queue, one at a time
        self.waiting_aside = 0
        self.closing = False
        self.reloads = {"good": 0, "failed": 0}

    def start(self) -> None:
        for run in self.runs.values():
            run.start()

    def pick(self, route: str, heads: Sequence[str], name: str | None) -> ServedRun:
        """The run of that name; without one, the only run, or the only one whose head serves the route. Where there is
        one run, any name is its own: clients must send some."""
        runs = list(self.runs.values())
        fitting = [run for run in runs if run.engine.head.means in heads]
        chosen: ServedRun | None
        if name in self.runs:
            chosen = self.runs[str(name)]
        elif len(runs) == 1:
            chosen = runs[0]
        elif name is not None:
            chosen = self.named(name)
        elif len(fitting) == 1:
            chosen = fitting[0]
        elif fitting:
            names = ", ".join(run.name for run in fitting)
            raise WrongRoute(f"several runs serve {route}: {names}; call /run/NAME{route}")
        else:
            heads_here = ", ".join(f"{run.name} ({run.engine.head.means})" for run in runs)
            raise WrongRoute(f"no run serves {route}; there are {heads_here}")
        if chosen.engine.head.means not in heads:
            means = chosen.engine.head.means
            raise WrongRoute(
                f"{chosen.name} has a head that gives {means}, which {route} does not serve; use {INSTEAD[means]}"
            )
        return chosen

    def named(self, name: str) -> ServedRun:
        if name not in self.runs:
            raise UnknownModel(f"no run is called {shown(name)}; there are: {', '.join(self.runs)}")
        return self.runs[name]

    def problems(self) -> dict[str, str | None]:
        """What is wrong with each run, None where nothing is."""
        if self.closing:
            return dict.fromkeys(self.runs, "the server is shutting down")
        return {name: run.problem(self.patience) for name, run in self.runs.items()}

    @property
    def ready(self) -> bool:
        """Whether any run answers: one that does not must not take the others with it."""
        return any(problem is None for problem in self.problems().values())

    async def reload(self) -> None:
        """Load all runs anew, one after the other. Requests of the old one are answered by it; one that does not load
        leaves the old one where it is."""
        for name, old in list(self.runs.items()):
            try:
                new = await await_in_passing(partial(self._load, old.setting, **self._shared))
            except BaseException as error:  # whatever a library makes of a damaged file
                if not is_failure(error):
                    raise
                self.reloads["failed"] += 1
                log.error("reload failed", extra={"facts": {"run": name, "error": first_line(error)}})
                continue
            new.start()
            self.runs[name] = new
            while old.calls:  # some ask twice: scores of documents, and then their spans
                await asyncio.sleep(0.02)
            old.close()
            self.reloads["good"] += 1
            log.info("reloaded", extra={"facts": {"run": name}})

    def close(self, *, timeout: float) -> bool:
        """Let nobody in, compute what waits; whether that was done in time."""
        self.closing = True
        for run in self.runs.values():
            run.close()
        until = time.monotonic() + timeout
        done = [run.worker.join(max(0.0, until - time.monotonic())) for run in self.runs.values()]
        self._shared["tokenizers"].shutdown(wait=False, cancel_futures=True)
        self._shared["turns"].close()
        return all(done)

    def _watch(self, run: ServedRun, batch: Batch) -> None:
        for watcher in self.watchers:
            watcher(run, batch)
