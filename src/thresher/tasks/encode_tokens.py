"""Rows whose outputs are of tokens, in windows: questions with their contexts, and words with tags."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from thresher.core.heads import OF_TOKENS
from thresher.errors import DataError
from thresher.tasks.encode import LONGEST_FIRST, NOT_COUNTED, Encoded, EncodedSet, Span, TokenTags, encode
from thresher.tasks.task import Example
from thresher.tasks.truth import Answers
from thresher.text import shown
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.windows import WINDOW, Windows, question_windows, text_windows, token_span, word_windows

NO_LIMIT = 512  # tokens of a window where neither the user nor the model says


def encode_for(
    means: str,
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    max_length: int | None,
    positions: int | None,
    truncation: str = LONGEST_FIRST,
) -> EncodedSet:
    """Rows for a model whose outputs have this meaning: one encoded row each, or windows where they are of tokens.

    Windows have `max_length` tokens, 384 for questions where that is None, and never more than the model's `positions`.
    """
    if means not in OF_TOKENS:
        return encode(tokenizer, examples, max_length=max_length, positions=positions, truncation=truncation)
    wanted = max_length if max_length is not None else WINDOW if means == "span" else positions or NO_LIMIT
    limit = wanted if positions is None else min(wanted, positions)
    reader = text_tokenizer(tokenizer)
    if means == "span":
        contexts = [_context(row, number) for number, row in enumerate(examples, 1)]
        windows = question_windows(reader, [row.text for row in examples], contexts, limit=limit)
    elif all(row.words for row in examples):
        windows = word_windows(reader, [row.words for row in examples], limit=limit)
    else:
        windows = text_windows(reader, [row.text for row in examples], limit=limit)
    for number, problem in sorted(windows.problems.items()):
        raise DataError(f"row {number + 1}, {shown(examples[number].text)}: {problem.says}")
    labels = _spans(windows, examples) if means == "span" else _tags(windows, examples)
    rows = [Encoded(*row, label) for row, label in zip(windows.tokens.rows(), labels, strict=True)]
    return EncodedSet(rows, 0, limit, windows)


def _context(row: Example, number: int) -> str:
    if row.pair is None:
        raise DataError(f"row {number} has a question, {shown(row.text)}, and no context; name its column")
    return row.pair


def _spans(windows: Windows, examples: Sequence[Example]) -> list[Span | None]:
    """Where the answer is in each window: of several, the one that most people gave."""
    found: list[Span | None] = []
    starts = windows.tokens.starts
    for window, item in enumerate(windows.rows.tolist()):
        answers = examples[item].label
        if not isinstance(answers, Answers):
            found.append(None)
            continue
        given = Counter(zip(answers.starts, answers.texts, strict=True)).most_common(1)
        offsets = windows.offsets[int(starts[window]) : int(starts[window + 1])]
        places = [token_span(offsets, start, start + len(text)) for (start, text), _ in given]
        found.append(Span(*places[0]) if places else Span(0, 0))
    return found


def _tags(windows: Windows, examples: Sequence[Example]) -> list[TokenTags | None]:
    """The tag of each word at the first of its tokens in a window; a window may begin in the midst of a word."""
    found: list[TokenTags | None] = []
    starts = windows.tokens.starts
    for window, item in enumerate(windows.rows.tolist()):
        tags = examples[item].label
        if not isinstance(tags, tuple):
            found.append(None)
            continue
        words = windows.words[int(starts[window]) : int(starts[window + 1])]
        first = (words >= 0) & (np.concatenate([[-1], words[:-1]]) != words)
        known = np.array([*tags, NOT_COUNTED])
        values = np.where(first, known[np.where(first, words, -1)], NOT_COUNTED)
        if windows.begins[window] > 0 and first.any():
            values[np.flatnonzero(first)[0]] = NOT_COUNTED  # its word may have begun before the window
        found.append(TokenTags(tuple(values.tolist())))
    return found
