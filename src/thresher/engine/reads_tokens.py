"""The methods of an engine whose head reads every token: answers to questions, and tags."""

import functools
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from thresher.core.heads import Head
from thresher.engine.checks import check_items, check_max_tokens, check_window, other_head, whole_number
from thresher.engine.executor import Executor
from thresher.engine.forks import check_process
from thresher.engine.of_tokens import (
    Answer,
    Computed,
    Tagged,
    answers_in,
    is_words,
    tagged_in,
    windows_of_questions,
    windows_of_texts,
)
from thresher.engine.stream import Group, TextStream
from thresher.engine.token_answers import TokenAnswers
from thresher.engine.token_stream import MakeWindows, TokenStream
from thresher.errors import ConfigError, DataError
from thresher.models.heads import SPAN_OUTPUTS
from thresher.text import shown
from thresher.tokenizing.spans import LONGEST, N_BEST
from thresher.tokenizing.tokens import Tokens
from thresher.tokenizing.windows import Windows

Words = Sequence[str]  # a text as its words


class ReadsTokens:
    """`answer` and `tag`, one call or a stream. Contexts and texts of any length are read in overlapping windows of at
    most `max_length` tokens."""

    head: Head
    labels: list[str]
    max_length: int
    executor: Executor
    _stream: TextStream
    _process: int

    def answer(
        self,
        question: str | Iterable[str],
        context: str | Iterable[str],
        *,
        n_best: int = N_BEST,
        longest: int = LONGEST,
        null_threshold: float | None = None,
        max_tokens: int | None = None,
    ) -> Any:
        """The `Answer` to a question in a context, or a list of many: for lists of one length, or one text and a list.

        `longest`: tokens of an answer. There is none where the null score exceeds the best span's by more than
        `null_threshold`; if not given, that found in training, or else 0; infinite, there always is one. Of many, one
        that cannot be answered has an error; alone it is a DataError.
        """
        options: Any = {"n_best": n_best, "longest": longest, "null_threshold": null_threshold}
        found = list(self.answer_stream(_pairs(question, context), **options, max_tokens=max_tokens))
        if not (isinstance(question, str) and isinstance(context, str)):
            return found
        if found[0].error is not None:
            raise DataError(found[0].error)
        return found[0]

    def answer_stream(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        n_best: int = N_BEST,
        longest: int = LONGEST,
        null_threshold: float | None = None,
        max_tokens: int | None = None,
        window: int | None = None,
    ) -> Iterator[Answer]:
        """The same for a stream of (question, context), in its order and in bounded memory; `window` pairs of a
        generator are read and answered before the next is asked for."""
        self._check_means("span", "answer")
        n_best = whole_number("n_best", n_best, low=1, unit="answers")
        longest = whole_number("longest", longest, low=1, unit="tokens")
        threshold = _threshold(self.head.null_threshold if null_threshold is None else null_threshold)
        parts = self._computed(check_items(pairs, name="pairs"), windows_of_questions, max_tokens, window)
        for items, found in parts:
            contexts = [item[1] if item_ not in found.problems else "" for item_, item in enumerate(items)]
            yield from answers_in(found, contexts, n_best=n_best, longest=longest, null_threshold=threshold)

    def tag(self, texts: Sequence[str | Words], *, max_tokens: int | None = None) -> list[Tagged]:
        """The entities of texts, each a string, or a list of its words. One that cannot be tagged has an error."""
        return list(self.tag_stream(texts, max_tokens=max_tokens))

    def tag_stream(
        self, texts: Iterable[str | Words], *, max_tokens: int | None = None, window: int | None = None
    ) -> Iterator[Tagged]:
        """The same for a stream; the rest is as for `answer_stream`."""
        self._check_means("tags", "tag")
        for _, alike in itertools.groupby(check_items(texts), key=is_words):
            for items, found in self._computed(_listed(alike, texts), self._windows_of(), max_tokens, window):
                yield from tagged_in(found, items, self.labels)

    def window_tokens(self, items: Sequence[Any]) -> Tokens:
        """The windows of texts like those that will come, as an executor gets them."""
        return self.windows(items).tokens

    def windows(self, items: Sequence[Any]) -> Windows:
        """Texts, or (question, context) pairs, in windows: with `begin` and `finish_tokens` the steps of `answer`."""
        return self._token_stream.windows(items, self._make())

    def answers_of(self, windows: Windows, given: TokenAnswers, items: Sequence[Any], *, n_best: int = N_BEST) -> Any:
        """What the outputs of windows say of the items they are of: an `Answer`, or a `Tagged`, for each."""
        problems = {item: problem.says for item, problem in windows.problems.items()}
        for number, says in given.problems.items():
            problems.setdefault(int(windows.rows[number]), says)
        computed = Computed(windows, given.outputs, given.kept, problems)
        if self.head.means == "tags":
            return tagged_in(computed, items, self.labels)
        threshold = _threshold(self.head.null_threshold)
        contexts = [context for _, context in items]
        return answers_in(computed, contexts, n_best=n_best, longest=LONGEST, null_threshold=threshold)

    def finish_tokens(self, begun: Group) -> TokenAnswers:
        """The outputs of every token of what was launched."""
        outputs, kept, problems = self._stream.finish_tokens(begun, width=self._token_outputs)
        bounds = begun.tokens.starts.tolist()
        rows = tuple(outputs[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True))
        return TokenAnswers(self.head, rows, kept, begun.tokens.lengths, begun.tokens.truncated, problems)

    def _computed(self, items: Any, make: Any, max_tokens: int | None, window: int | None) -> Any:
        check_process(self._process, self.executor.device)
        budget = self.executor.token_budget if max_tokens is None else check_max_tokens(max_tokens)
        window = None if window is None else check_window(window)
        bound = functools.partial(make, limit=self.max_length)
        return self._token_stream(items, bound, max_tokens=budget, window=window)

    @property
    def _token_stream(self) -> TokenStream:
        """Made anew: one that was kept would be copied with the engine, and compute at the dial of the first."""
        return TokenStream(self._stream, outputs=self._token_outputs)

    @property
    def _token_outputs(self) -> int:
        return SPAN_OUTPUTS if self.head.means == "span" else len(self.labels)

    def _make(self) -> MakeWindows:
        return functools.partial(self._windows_of(), limit=self.max_length)

    def _windows_of(self) -> Callable[..., Windows]:
        if self.head.means == "span":
            return windows_of_questions
        return functools.partial(windows_of_texts, words_of=self.head.words)

    def _check_means(self, means: str, asked: str) -> None:
        if self.head.means != means:
            raise other_head(self.head.means, asked)


def _listed(alike: Iterator[Any], texts: Any) -> Any:
    """A part of a list is one; a stream stays one, and is not read ahead."""
    return list(alike) if isinstance(texts, Sequence) else alike


def _pairs(question: Any, context: Any) -> list[tuple[Any, Any]]:
    questions, contexts = (
        each if isinstance(each, str) else list(check_items(each, name=name))
        for each, name in ((question, "question"), (context, "context"))
    )
    counts = {len(each) for each in (questions, contexts) if not isinstance(each, str)}
    if len(counts) > 1:
        rule = "give as many of both, or one beside a list"
        raise ConfigError(f"{len(questions)} questions and {len(contexts)} contexts; {rule}")
    count = counts.pop() if counts else 1
    questions, contexts = ([each] * count if isinstance(each, str) else each for each in (questions, contexts))
    return list(zip(questions, contexts, strict=True))


def _threshold(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ConfigError(f"null_threshold = {shown(value)} must be a number; infinity gives an answer in any case")
    return float(value)
