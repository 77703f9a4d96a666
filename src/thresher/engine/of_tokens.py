"""What heads that read every token say of texts: answers to questions, and entities, in characters of the text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.engine.predictions import Outputs
from thresher.text import is_blank, shown
from thresher.tokenizing.called import TextTokenizer
from thresher.tokenizing.spans import LONGEST, N_BEST, Candidate, find_answers, whole_span
from thresher.tokenizing.tags import find_entities, word_tags
from thresher.tokenizing.tokens import Problem
from thresher.tokenizing.windows import Windows, question_windows, text_windows, word_windows
from thresher.tokenizing.words import divided


@dataclass(frozen=True)
class Span:
    """context[start:end]; the sum of its start and end logits; its probability among the n best and no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answer:
    """The answer to a question, text = context[start:end]; empty, without start and end, where the context has none.

    `score` is that of the best span, whether it is given or not, and `null_score` that of no answer: the sums of logits
    that the null threshold compares. `probability` is of what is given. `best` are the n best spans. `tokens`, in so
    many `windows`, are what was computed, and `kept` what each layer passed on. `error` says why there is no result.
    """

    text: str = ""
    start: int | None = None
    end: int | None = None
    score: float | None = None
    null_score: float | None = None
    probability: float | None = None
    best: tuple[Span, ...] = ()
    tokens: int = 0
    windows: int = 0
    kept: tuple[int, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class TextEntity:
    """text[start:end] of the tagged text, its label, and the mean probability of its words' tags."""

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Tagged:
    """The entities of a text, in its order. Where the text was given as words, offsets are those of the words joined by
    spaces, and `tags` has one for every word. The rest is as in Answer."""

    entities: tuple[TextEntity, ...] = ()
    tags: tuple[str, ...] | None = None
    tokens: int = 0
    windows: int = 0
    kept: tuple[int, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Computed:
    """Windows with every token's outputs (total, outputs), what each layer kept of each window (windows, layers), and
    why items have no result, by their numbers."""

    windows: Windows
    outputs: Outputs
    kept: NDArray[np.int32]
    problems: dict[int, str]

    def window_with(self, character: int) -> int:
        """The first window that has this character of its context; the first of all where none has."""
        there = (self.windows.offsets[:, 0] <= character) & (character < self.windows.offsets[:, 1])
        place = int(np.flatnonzero(there)[0]) if there.any() else 0
        return int(np.searchsorted(self.windows.tokens.starts, place, side="right")) - 1

    def counts(self) -> list[dict[str, Any]]:
        """Tokens, windows and kept of each item."""
        lengths, items = self.windows.tokens.lengths, self.windows.items
        tokens, kept = np.zeros(items, np.int64), np.zeros((items, self.kept.shape[1]), np.int64)
        np.add.at(tokens, self.windows.rows, lengths)
        np.add.at(kept, self.windows.rows, self.kept)
        windows = np.bincount(self.windows.rows, minlength=items)
        rows = zip(tokens.tolist(), windows.tolist(), kept.tolist(), strict=True)
        return [{"tokens": a, "windows": b, "kept": tuple(c) if a else ()} for a, b, c in rows]


# ---- questions


def windows_of_questions(tokenizer: TextTokenizer, items: Sequence[Any], *, limit: int) -> Windows:
    """items: (question, context) tuples; what is none gets a problem."""
    pairs: list[Any] = [item if isinstance(item, tuple | list) and len(item) == 2 else (None, None) for item in items]
    found = question_windows(tokenizer, [pair[0] for pair in pairs], [pair[1] for pair in pairs], limit=limit)
    for number, (item, pair) in enumerate(zip(items, pairs, strict=True)):
        if pair is not item:
            found.problems[number] = Problem(
                "input", f"{shown(item)} is no question with its context; give two strings"
            )
    return found


def answers_in(
    found: Computed,
    contexts: Sequence[Any],
    *,
    n_best: int = N_BEST,
    longest: int = LONGEST,
    null_threshold: float = 0.0,
) -> list[Answer]:
    """One for each item."""
    spans, answers = find_answers(found.windows, found.outputs, n_best=n_best, longest=longest), []
    for item, counted in enumerate(found.counts()):
        said, own = found.problems.get(item), spans[item]
        if said is not None or own is None:
            answers.append(Answer(error=said or "the question has no window", **counted))
            continue
        context = contexts[item]
        best = _spans(own.candidates, context)
        given = best[0] if own.answered(null_threshold) is not None else None
        known: dict[str, Any] = {"null_score": own.null_score, "best": best, **counted}
        known["score"] = best[0].score if best else None
        if given is None:
            nothing = max(0.0, 1 - sum(one.probability for one in best))
            answers.append(Answer(probability=nothing, **known))
        else:
            place = (given.text, given.start, given.end)
            answers.append(Answer(*place, probability=given.probability, **known))
    return answers


def _spans(candidates: Sequence[Candidate], context: str) -> tuple[Span, ...]:
    """Those that are the same characters once no character is cut are one, as likely as all of them."""
    found: dict[tuple[int, int], Span] = {}
    for one in candidates:
        start, end = place = whole_span(context, one.start, one.end)
        if place in found:
            found[place] = replace(found[place], probability=found[place].probability + one.probability)
        else:
            found[place] = Span(context[start:end], start, end, one.score, one.probability)
    return tuple(found.values())


# ---- tags


def is_words(item: Any) -> bool:
    """Whether a text is given as its words."""
    return isinstance(item, list | tuple)


def text_of(item: Any) -> Any:
    """A text, or the words of one joined by spaces; anything else as it is."""
    return " ".join(item) if is_words(item) and all(isinstance(word, str) for word in item) else item


def windows_of_texts(
    tokenizer: TextTokenizer, items: Sequence[Any], *, limit: int, words_of: str = "tokenizer"
) -> Windows:
    """items: all texts, or all words of texts. Of a text, words are the tokenizer's, or those of the text."""
    if not items or not is_words(items[0]):
        return in_words(text_windows(tokenizer, items, limit=limit), items, words_of)
    problems = {number: problem for number, item in enumerate(items) if (problem := _word_problem(item)) is not None}
    words = [[] if number in problems else list(item) for number, item in enumerate(items)]
    found = word_windows(tokenizer, words, limit=limit)
    found.problems.update(problems)
    return found


def in_words(windows: Windows, texts: Sequence[str], words_of: str) -> Windows:
    """Windows of texts with the tokenizer's words, or with those of the text."""
    return windows if words_of == "tokenizer" else divided(windows, texts)


def _word_problem(item: Sequence[Any]) -> Problem | None:
    for word in item:
        if not isinstance(word, str):
            return Problem("input", f"a {type(word).__name__} among the words is not text; give words as strings")
        if is_blank(word):
            return Problem("input", f"the word {word!r} is empty; leave it out")
    return None


def tagged_in(found: Computed, items: Sequence[Any], names: Sequence[str]) -> list[Tagged]:
    """One for each item; `names` of the tags."""
    words = bool(items) and is_words(items[0])
    counts = [len(item) if words and item_ not in found.problems else 0 for item_, item in enumerate(items)]
    of_words = word_tags(found.windows, found.outputs, counts) if words else [None] * len(items)
    entities, results = find_entities(found.windows, found.outputs, names), []
    for item, counted in enumerate(found.counts()):
        said, own = found.problems.get(item), entities[item]
        if said is not None or own is None:
            results.append(Tagged(error=said or "the text has no window", **counted))
            continue
        text = text_of(items[item])
        spans = [(one, *whole_span(text, one.start, one.end)) for one in own]
        chosen = tuple(TextEntity(one.label, text[start:end], start, end, one.score) for one, start, end in spans)
        numbers = of_words[item]
        tags = None if numbers is None else tuple(names[number] if number >= 0 else "O" for number in numbers.tolist())
        results.append(Tagged(chosen, tags, **counted))
    return results
