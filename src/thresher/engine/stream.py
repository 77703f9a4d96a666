"""From a stream of texts to computed outputs: read in windows, packed by length, tokenized beside the computing."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from thresher.engine.executor import Executor, Output
from thresher.engine.forks import OneAtATime, check_stream
from thresher.engine.predictions import Outputs
from thresher.engine.texts import EncodedText, encode_texts
from thresher.text import first_line

Item = str | tuple[str, str]


@dataclass(frozen=True)
class Computed:
    """One text with its outputs (outputs,), the answer made of them and kept counts; none where it has an error."""

    text: EncodedText
    outputs: Outputs | None = None
    answer: Any = None
    kept: tuple[int, ...] = ()
    finite: bool = True


@dataclass(frozen=True)
class Batch:
    """Texts of a window by their numbers, and the call that computes them, or raises why they cannot be packed."""

    numbers: list[int]
    run: Callable[[], Output]


class TextStream:
    """Texts through one tokenizer and one executor.

    `cuts`: which text of a pair gives way where it is too long; `pairs`: whether texts come in pairs, where that is
    known; `answer` makes answers of a batch's outputs, (texts, outputs), together, which is cheaper than one by one.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Any,
        *,
        max_length: int,
        cuts: str,
        pairs: bool | None,
        answer: Callable[[Outputs], list[Any]],
    ) -> None:
        self.executor, self.tokenizer, self.max_length = executor, tokenizer, max_length
        self.cuts, self.pairs, self.answer = cuts, pairs, answer
        # A tokenizer may have been given words that the model lacks, or number segments that it does not tell apart.
        words = len(tokenizer) if hasattr(tokenizer, "__len__") else math.inf
        self._may_miss = words > executor.tables.words or executor.tables.types == 1
        self._tokenizing = OneAtATime()  # a tokenizer keeps its truncation as state: one call at a time

    def __call__(self, items: Iterable[Item], *, max_tokens: int, window: int) -> Iterator[Computed]:
        """Every text in its order, `window` of them read at a time, in batches of at most `max_tokens`."""
        stream, process = iter(items), os.getpid()
        failure: list[Exception] = []

        def read() -> list[Item]:
            """The next window; what was read before a failure still counts."""
            chunk: list[Item] = []
            try:
                if not failure:
                    chunk.extend(islice(stream, window))
            except Exception as error:
                failure.append(error)
            return chunk

        chunk = read()
        # The first window has no other to be prepared beside, and a single text would wait for the thread.
        ready = self._prepare(chunk, max_tokens) if chunk else None
        with ThreadPoolExecutor(max_workers=1) as pool:
            while ready is not None:
                chunk = read()
                pending = pool.submit(self._prepare, chunk, max_tokens) if chunk else None
                for computed in self._computed(*ready):
                    yield computed
                    check_stream(process)
                ready = None if pending is None else pending.result()
        if failure:
            raise failure[0]

    def _prepare(self, items: Sequence[Item], max_tokens: int) -> tuple[list[EncodedText], list[Batch]]:
        """A window's texts as tokens, and token-budget batches of similar lengths of those that are good."""
        with self._tokenizing:
            encoded = encode_texts(self.tokenizer, items, self.max_length, cuts=self.cuts, pairs=self.pairs)
        if self._may_miss:
            encoded = [self._checked(text) for text in encoded]
        lengths = [len(text.input_ids) for text in encoded]
        good = sorted((i for i, text in enumerate(encoded) if not text.error), key=lambda i: -lengths[i])
        batches = within_budget(good, lengths, max_tokens)
        return encoded, [Batch(numbers, self._ready([encoded[i] for i in numbers])) for numbers in batches]

    def _checked(self, text: EncodedText) -> EncodedText:
        """A text that the embedding tables do not cover gets an error of its own; the batch would have none."""
        if text.error:
            return text
        types = None if text.token_types is None else np.asarray(text.token_types)
        problem = self.executor.tables.problem(np.asarray(text.input_ids), types)
        return EncodedText([], error=problem) if problem else text

    def _ready(self, encoded: Sequence[EncodedText]) -> Callable[[], Output]:
        """The call that computes a batch; it is packed here, while others are computed."""
        ids, types = [text.input_ids for text in encoded], [text.token_types for text in encoded]
        try:
            return partial(self.executor.run, self.executor.pack(ids, types))
        except Exception as error:  # a batch that cannot be packed must not harm the others of its window
            return partial(_raise, error)

    def _computed(self, encoded: list[EncodedText], batches: list[Batch]) -> list[Computed]:
        """All of a window's texts, back in order."""
        found = {i: Computed(text) for i, text in enumerate(encoded) if text.error}
        for batch in batches:
            found |= self._batch_computed(encoded, batch)
        return [found[i] for i in range(len(encoded))]

    def _batch_computed(self, encoded: list[EncodedText], batch: Batch) -> dict[int, Computed]:
        """A batch's texts by their numbers.

        Where it fails, its halves are tried, and theirs: a batch may be too large for the memory that is left, and a
        text that is at fault gets the error alone.
        """
        try:
            return self._batch_answered(encoded, batch)
        except Exception as error:  # whatever the libraries raise, memory that is not to be had among it
            if len(batch.numbers) == 1:
                (i,) = batch.numbers
                return {i: Computed(replace(encoded[i], error=f"the text cannot be computed: {first_line(error)}"))}
        middle = len(batch.numbers) // 2
        found: dict[int, Computed] = {}
        for numbers in (batch.numbers[:middle], batch.numbers[middle:]):
            half = Batch(numbers, self._ready([encoded[i] for i in numbers]))
            found |= self._batch_computed(encoded, half)
        return found

    def _batch_answered(self, encoded: list[EncodedText], batch: Batch) -> dict[int, Computed]:
        output = batch.run()
        outputs: Outputs = output.outputs.numpy()
        finite: Any = np.isfinite(outputs).all(axis=1)
        with np.errstate(invalid="ignore"):  # what is not a number gets an error, and no answer
            answers = self.answer(outputs)
        rows = zip(batch.numbers, outputs, answers, output.kept.tolist(), finite, strict=True)
        return {i: Computed(encoded[i], row, answer, tuple(kept), bool(good)) for i, row, answer, kept, good in rows}


def _raise(error: Exception) -> NoReturn:
    raise error


def within_budget(order: list[int], lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Split `order` into batches of at most `max_tokens` tokens; a longer text is a batch of its own."""
    batch: list[int] = []
    used = 0
    for i in order:
        if batch and used + lengths[i] > max_tokens:
            yield batch
            batch, used = [], 0
        batch.append(i)
        used += lengths[i]
    if batch:
        yield batch
