"""From a stream of texts to answers: read, tokenized beside the computing, packed, launched, finished and handed out.

All of it is driven by the thread that asks for answers; only tokenizing has threads, or processes, of its own. On a GPU
launching does not wait, so that it computes while this thread hands out, reads and packs.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import Head
from thresher.engine.answers import Answers
from thresher.engine.executor import Executor, Output
from thresher.engine.forks import check_stream
from thresher.engine.inputs import Tables
from thresher.engine.predictions import Outputs
from thresher.engine.tokenizing import Tokenizing
from thresher.engine.windows import Item, Neighbours, Source, batches_of
from thresher.text import first_line
from thresher.tokenizing.tokens import Places, Problem, Tokens


@dataclass(frozen=True)
class Launched:
    """A batch's texts by their numbers in a group, and what finishes it, or raises why it could not be launched."""

    numbers: Places
    finish: Callable[[], Output]


@dataclass(frozen=True)
class Group:
    """Texts that are answered together, and their batches in flight."""

    tokens: Tokens
    batches: list[Launched]


class TextStream:
    """Texts through one tokenizer and one executor. `names`: of the head's classes."""

    def __init__(self, executor: Executor, tokenizing: Tokenizing, *, head: Head, names: Sequence[str]) -> None:
        self.executor, self.tokenizing = executor, tokenizing
        self.head, self.names = head, tuple(names)
        width = head.width or (executor.shape.width if head.means == "embedding" else 1)
        self.width = len(self.names) or width

    def __call__(
        self, items: Iterable[Item], *, max_tokens: int, window: int, ahead: bool = False
    ) -> Iterator[Answers]:
        """Every text in its order, some at a time, in batches of at most `max_tokens`; see Source for the rest."""
        process, small = os.getpid(), not self.executor.by_length
        source = Source(items, window=window, small=small, ahead=ahead)
        groups: Groups = Neighbours(max_tokens) if small else Pieces()
        waiting: deque[Future[Tokens]] = deque()
        flying: deque[Group] = deque()
        with self.tokenizing.threads() as pool:
            while True:
                self._read(source, waiting, pool)
                self._launch(source, waiting, groups, flying, max_tokens)
                if flying:
                    done = self.finish(flying.popleft())
                    # The device gets its next batch before anybody looks at what it has computed.
                    self._read(source, waiting, pool)
                    self._launch(source, waiting, groups, flying, max_tokens)
                    yield done
                    check_stream(process)
                    source.handed_out(len(done))
                elif not waiting and source.ended:
                    break
        if source.failure is not None:
            raise source.failure

    def nothing(self) -> Answers:
        """The answers of no text at all."""
        return self.finish(Group(Tokens.of([]), []))

    def tokens(self, items: Sequence[Item]) -> Tokens:
        """What the texts are to the model; those that its tables do not cover have a problem."""
        return covered(self.executor.tables, self.tokenizing.read(items))

    def _read(self, source: Source, waiting: "deque[Future[Tokens]]", pool: Any) -> None:
        """Give the tokenizing threads as much as they can have."""
        while len(waiting) < self.tokenizing.ahead:
            first = not source.owes
            piece = source.piece()
            if not piece:
                return
            # What is alone has nothing to be tokenized beside, and a single text would wait for the thread.
            alone = first and source.pauses
            waiting.append(_done(self.tokens, piece) if alone else pool().submit(self.tokens, piece))

    def _launch(
        self,
        source: Source,
        waiting: "deque[Future[Tokens]]",
        groups: "Groups",
        flying: "deque[Group]",
        max_tokens: int,
    ) -> None:
        """Fill the device; wait for the tokenizer only where there is nothing else to wait for."""
        while len(flying) < self.executor.in_flight:
            group = groups.take(rest=not waiting and source.pauses)
            if group is not None:
                flying.append(self.begin(group, max_tokens))
            elif waiting and (waiting[0].done() or not flying):
                groups.add(waiting.popleft().result())
            else:
                return

    def begin(self, tokens: Tokens, max_tokens: int) -> Group:
        """Launch texts, in as many batches as they need; `finish` gives their answers."""
        batches = batches_of(tokens, max_tokens, by_length=self.executor.by_length)
        return Group(tokens, [Launched(numbers, self._begun(tokens, numbers)) for numbers in batches])

    def _begun(self, tokens: Tokens, numbers: Places) -> Callable[[], Output]:
        try:
            begun = self.executor.launch(self.executor.pack(tokens.take(numbers)))
        except Exception as failure:  # a batch that cannot be packed or launched must not harm the others
            error = failure

            def fail() -> Output:
                raise error

            return fail
        return lambda: self.executor.finish(begun)

    def finish(self, group: Group) -> Answers:
        """All of a group's texts, back in order."""
        tokens, texts = group.tokens, len(group.tokens)
        problems = {number: problem.says for number, problem in tokens.problems.items()}
        parts = [part for batch in group.batches for part in self._computed(tokens, batch, problems)]
        width = parts[0][1].outputs.shape[1] if parts else self.width
        outputs = np.full((texts, width), np.nan, np.float32)
        kept = np.zeros((texts, self.executor.shape.layers), np.int32)
        for numbers, found in parts:
            outputs[numbers], kept[numbers] = found.outputs.numpy(), found.kept.numpy()
        computed = kept[:, 0] > 0
        for number in np.flatnonzero(computed & ~np.isfinite(outputs).all(axis=1)).tolist():
            problems[number] = f"the prediction is not a number in {self.executor.dtype}"  # or it would pass for one
        return Answers(self.head, self.names, outputs, kept, tokens.lengths, tokens.truncated, problems)

    def token_outputs(
        self, tokens: Tokens, max_tokens: int, *, width: int
    ) -> tuple[Outputs, NDArray[np.int32], dict[int, str]]:
        """Of a head that reads every token: its outputs (total, width), zeros where there is a problem; what each layer
        kept (texts, layers); and problems, by the text's number."""
        return self.finish_tokens(self.begin(tokens, max_tokens), width=width)

    def finish_tokens(self, group: Group, *, width: int) -> tuple[Outputs, NDArray[np.int32], dict[int, str]]:
        """The same of texts that were launched."""
        tokens = group.tokens
        outputs = np.zeros((tokens.total, width), np.float32)
        kept = np.zeros((len(tokens), self.executor.shape.layers), np.int32)
        problems: dict[int, str] = {}
        for batch in group.batches:
            for numbers, found in self._computed(tokens, batch, problems):
                places = np.concatenate([np.arange(*tokens.starts[number : number + 2]) for number in numbers.tolist()])
                outputs[places], kept[numbers] = found.outputs.numpy(), found.kept.numpy()
        bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
        for number in np.unique(np.searchsorted(tokens.starts, bad, side="right") - 1).tolist():
            problems[number] = f"the prediction is not a number in {self.executor.dtype}"
            outputs[tokens.starts[number] : tokens.starts[number + 1]] = 0
        return outputs, kept, problems

    def _computed(self, tokens: Tokens, batch: Launched, problems: dict[int, str]) -> Iterator[tuple[Places, Output]]:
        """A batch's texts with their outputs.

        Where it fails, its halves are tried, and theirs: a batch may be too large for the memory that is left, and a
        text that is at fault gets the error alone. Where the device itself is gone, that is one error, of no text.
        """
        try:
            yield batch.numbers, batch.finish()
            return
        except Exception as error:  # whatever the libraries raise, memory that is not to be had among it
            self.executor.check_alive()
            if len(batch.numbers) == 1:
                problems[int(batch.numbers[0])] = f"the text cannot be computed: {first_line(error)}"
                return
        middle = len(batch.numbers) // 2
        for numbers in (batch.numbers[:middle], batch.numbers[middle:]):
            yield from self._computed(tokens, Launched(numbers, self._begun(tokens, numbers)), problems)


class Pieces:
    """Every piece is a group: a window, whose texts are sorted by length."""

    def __init__(self) -> None:
        self._parts: deque[Tokens] = deque()

    def add(self, tokens: Tokens) -> None:
        self._parts.append(tokens)

    def take(self, *, rest: bool) -> Tokens | None:
        """The next, or None; there is never a `rest`."""
        return self._parts.popleft() if self._parts else None


Groups = Neighbours | Pieces


def covered(tables: Tables, tokens: Tokens) -> Tokens:
    """The same texts, but those that the model's tables do not cover have a problem. A tokenizer may have been given
    words that the model lacks, or number segments that it does not tell apart."""
    if tables.types is None:
        tokens = replace(tokens, types=None)
    if not tokens.total or tables.problem(tokens.ids, tokens.types) is None:
        return tokens
    problems: dict[int, Problem] = {}
    for number in np.flatnonzero(tokens.lengths).tolist():
        one = tokens.between(number, number + 1)
        says = tables.problem(one.ids, one.types)
        if says is not None:
            problems[number] = Problem("table", says)
    return tokens.without(problems)


def _done(work: Callable[[Any], Tokens], piece: Any) -> "Future[Tokens]":
    """What was worked out here, where a thread would have done it."""
    found: Future[Tokens] = Future()
    found.set_result(work(piece))
    return found
