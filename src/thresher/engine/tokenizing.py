"""How an engine tokenizes: in this thread, in a few others, or in processes; the tokens are the same."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from thresher.engine.checks import check_workers
from thresher.engine.forks import OneAtATime
from thresher.hardware import usable_cores
from thresher.tokenizing.fast import FastTokenizer, text_tokenizer
from thresher.tokenizing.read import read_texts
from thresher.tokenizing.tokens import Tokens
from thresher.tokenizing.workers import TokenizingProcesses

# Python threads that take ids out of the tokenizer's own threads: more of them only wait for each other.
THREADS = 4
MANY_CORES = 12  # from here on processes tokenize for a GPU; each makes about 7,000 texts a second
SPARED = 2  # cores for the engine itself
MOST = 14


class Tokenizing:
    """One tokenizer, for texts of at most `limit` tokens. `on_cores`: whether what computes them has the same cores, as
    its executor says, and is slower than one thread; `cuts`: which text of a pair gives way where it is too long;
    `pairs`: whether texts come in pairs, where that is known; `workers`: how many processes, None: as many as pay."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        on_cores: bool,
        limit: int,
        cuts: str,
        pairs: bool | None,
        workers: int | None = None,
    ) -> None:
        reader = text_tokenizer(tokenizer)
        self.reader = reader.apart() if isinstance(reader, FastTokenizer) else reader
        self.limit, self.cuts, self.pairs = limit, cuts, pairs
        self._tokenizing = OneAtATime()  # a slow tokenizer keeps its truncation as state: one call at a time
        fast = isinstance(reader, FastTokenizer)
        about: Any = {"on_cores": on_cores, "fast": fast, "cores": usable_cores()}
        self.workers, self.why = choose_workers(check_workers(workers), **about)
        if self.workers and self.reader is reader:
            self.workers, self.why = 0, "the tokenizer has rules in Python, which cannot be sent to another process"
        self._threads = self.workers or (THREADS if fast and not on_cores else 1)
        self.ahead = self._threads + 2
        self._processes: TokenizingProcesses | None = None

    def read(self, items: Sequence[Any]) -> Tokens:
        """Tokens of a piece; any thread may call."""
        options: dict[str, Any] = {"limit": self.limit, "cuts": self.cuts, "pairs": self.pairs}
        if self._processes is not None:
            return self._processes.read(items, **options)
        if self.reader.parallel:
            return read_texts(self.reader, items, **options)
        with self._tokenizing:
            return read_texts(self.reader, items, **options)

    def start(self, *, wait: bool = False) -> None:
        """Start the processes, if there are to be any; until they are ready threads do their work."""
        if not self.workers or not isinstance(self.reader, FastTokenizer):
            return
        with self._tokenizing:
            if self._processes is None:
                self._processes = TokenizingProcesses(self.reader, self.workers)
        if wait:
            self._processes.wait()

    @contextlib.contextmanager
    def threads(self) -> Iterator[Callable[[], ThreadPoolExecutor]]:
        """Threads for one stream, started by the first that needs them, and gone at its end."""
        pool: list[ThreadPoolExecutor] = []

        def started() -> ThreadPoolExecutor:
            if not pool:
                pool.append(ThreadPoolExecutor(self._threads, thread_name_prefix="tokenizing"))
            return pool[0]

        try:
            yield started
        finally:
            for each in pool:
                each.shutdown(cancel_futures=True)

    def describe(self) -> dict[str, Any]:
        return {"tokenizing": f"{self.workers} processes" if self.workers else "threads", "tokenizing_why": self.why}


def choose_workers(asked: int | None, *, on_cores: bool, fast: bool, cores: int) -> tuple[int, str]:
    """How many processes tokenize, 0 for threads of this one, and why."""
    if not fast:
        return 0, "the tokenizer is not one of the tokenizers library, and is called by one thread at a time"
    if asked is not None:
        return asked, f"workers = {asked} was asked for"
    if on_cores:
        return 0, "a CPU computes far longer than it tokenizes"
    if cores < MANY_CORES:
        return 0, f"processes pay from {MANY_CORES} cores on, and there are {cores}"
    return min(MOST, cores - SPARED), f"a GPU waits for the tokenizer, and there are {cores} cores"
