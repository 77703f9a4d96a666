"""The best spans are those that a look at every span finds; no answer is the least of all windows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.kinds import tokenizer
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.spans import answer_text, find_answers, whole_span
from thresher.tokenizing.windows import Windows, question_windows


def windows_of(contexts: list[str], *, limit: int = 16, overlap: int = 3) -> Windows:
    reader = text_tokenizer(tokenizer("wordpiece"))
    return question_windows(reader, ["who?"] * len(contexts), contexts, limit=limit, overlap=overlap)


def every_span(windows: Windows, logits: np.ndarray, longest: int) -> dict[tuple[int, int], float]:
    """The readable twin: all spans of all windows of the only item."""
    found: dict[tuple[int, int], float] = {}
    for low, high in zip(windows.tokens.starts[:-1], windows.tokens.starts[1:], strict=True):
        for first in range(low, high):
            for last in range(first, min(first + longest, high)):
                if windows.offsets[first, 0] == -1 or windows.offsets[last, 0] == -1:
                    continue
                span = (int(windows.offsets[first, 0]), int(windows.offsets[last, 1]))
                score = float(logits[first, 0]) + float(logits[last, 1])
                found[span] = max(score, found.get(span, -math.inf))
    return found


@settings(max_examples=60, deadline=None)
@given(words=st.integers(1, 40), seed=st.integers(0, 10**6), longest=st.integers(1, 12), n_best=st.integers(1, 25))
def test_the_best_of_all_spans(words: int, seed: int, longest: int, n_best: int) -> None:
    windows = windows_of([" ".join(["film"] * words)])
    logits = np.random.default_rng(seed).normal(size=(windows.tokens.total, 2))
    (found,) = find_answers(windows, logits, n_best=n_best, longest=longest)
    assert found is not None
    expected = sorted(every_span(windows, logits, longest).items(), key=lambda span: -span[1])[:n_best]
    assert [(one.start, one.end) for one in found.candidates] == [span for span, _ in expected]
    assert np.allclose([one.score for one in found.candidates], [score for _, score in expected])
    firsts = logits[windows.tokens.starts[:-1]].sum(axis=1)
    assert found.null_score == pytest.approx(firsts.min())
    powers = np.exp([found.null_score, *(one.score for one in found.candidates)])
    assert np.allclose([one.probability for one in found.candidates], powers[1:] / powers.sum())


def test_answers_without_a_bound_on_their_length() -> None:
    windows = windows_of([" ".join(["film"] * 40)])
    logits = np.random.default_rng(0).normal(size=(windows.tokens.total, 2))
    whole = find_answers(windows, logits, longest=windows.tokens.total, n_best=10**15)
    assert find_answers(windows, logits, longest=10**15, n_best=10**15) == whole


def test_no_answer_has_to_be_better_by_the_threshold() -> None:
    windows = windows_of(["a film"])
    logits = np.zeros((windows.tokens.total, 2))
    logits[0] = 2.0  # no answer: 4
    logits[4] = [1.0, 0.0]
    logits[5] = [0.0, 1.5]  # "a film": 2.5
    (found,) = find_answers(windows, logits)
    assert found is not None and found.margin == 1.5 and found.answered() is None
    assert found.answered(1.4) is None
    best = found.answered(1.5)  # as in the official script: beyond it, not at it
    assert best is not None and (best.start, best.end, best.score) == (0, 6, 2.5)
    assert answer_text(found, "a film") == "a film"


def test_contexts_without_anything_to_find() -> None:
    windows = windows_of(["", "a film", "cut \ud83d"])
    found = find_answers(windows, np.zeros((windows.tokens.total, 2)))
    assert found[2] is None and answer_text(found[2], "cut") == ""
    empty = found[0]
    assert empty is not None and empty.candidates == () and empty.margin == math.inf and empty.answered(1e9) is None
    assert answer_text(empty, "") == ""
    with pytest.raises(ValueError, match=r"expected \(12, 2\): a start and an end"):
        find_answers(windows, np.zeros((12, 3)))


@pytest.mark.parametrize(
    ("text", "span", "whole"),
    [
        ("cafe\u0301 b", (0, 4), (0, 5)),
        ("cafe\u0301 b", (4, 7), (3, 7)),  # a mark does not stand alone
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 b", (0, 1), (0, 5)),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 b", (2, 3), (0, 5)),
        ("1\ufe0f\u20e3 b", (0, 1), (0, 3)),
        ("\U0001f44d\U0001f3fd", (0, 1), (0, 2)),
        ("\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea", (1, 2), (0, 2)),  # the first of two flags
        ("\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea", (2, 3), (2, 4)),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f x", (0, 2), (0, 4)),
        ("\u0915\u093e \u0915", (0, 1), (0, 2)),  # a vowel sign that combines with nothing by its class
        ("\u0915\u093e \u0915", (1, 4), (0, 4)),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", (1, 4), (0, 6)),  # a Korean word in parts of its syllables
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", (3, 6), (3, 6)),
        ("\ud558\u11ab\uae00", (0, 1), (0, 2)),
        ("\uae00\ud558", (0, 1), (0, 1)),
        ("\u0e19\u0e49\u0e33 \u0e19", (0, 2), (0, 3)),  # Thai for water: a mark, and a vowel that is none
        ("\u0e99\u0eb3", (0, 1), (0, 2)),
        ("\u0646\u200c\u0647", (0, 1), (0, 2)),  # what keeps two letters apart is of the first
        ("\uff76\uff9e", (0, 1), (0, 2)),
        ("plain", (1, 3), (1, 3)),
        ("plain", (0, 5), (0, 5)),
        ("a\tb  c", (1, 5), (2, 3)),  # white space that is a token
        ("a\t\tb", (1, 3), (1, 3)),
        ("a \u0301b", (2, 4), (2, 4)),  # a mark after a space has no letter to go back to
        ("\u0301", (0, 0), (0, 0)),
    ],
)
def test_a_span_cuts_no_character(text: str, span: tuple[int, int], whole: tuple[int, int]) -> None:
    assert whole_span(text, *span) == whole
