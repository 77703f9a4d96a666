"""Windows are those of the library's call with return_overflowing_tokens: ids, types and characters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.kinds import KINDS, tokenizer
from tests.tokenizing.test_read import HOSTILE, TEXTS
from thresher.errors import ConfigError
from thresher.text import is_blank
from thresher.tokenizing.called import CalledTokenizer
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.spans import whole_span
from thresher.tokenizing.windows import (
    Windows,
    deciding,
    overlap_of,
    question_windows,
    text_windows,
    token_span,
    word_windows,
)

FROM_THE_LEFT = [
    kind for kind in KINDS if kind != "left"
]  # truncation_side decides what is cut, and nothing is cut here


def by_the_call(kind: str, question: str, context: str, limit: int, overlap: int) -> Any:
    """What the library makes of the pair; None where it refuses."""
    try:
        return tokenizer(kind)(
            [question],
            [context],
            truncation="only_second",
            max_length=limit,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
    except BaseException as error:  # a panic of the tokenizers library among them
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def rows_of(windows: Windows) -> list[list[int]]:
    return [ids for ids, _ in windows.tokens.rows()]


@pytest.mark.parametrize("kind", FROM_THE_LEFT)
@settings(max_examples=100, deadline=None)
@given(question=TEXTS, context=TEXTS, limit=st.integers(12, 40), overlap=st.integers(0, 7))
def test_the_same_windows_as_the_librarys_call(
    kind: str, question: str, context: str, limit: int, overlap: int
) -> None:
    found = question_windows(text_tokenizer(tokenizer(kind)), [question], [context], limit=limit, overlap=overlap)
    if is_blank(question):
        assert found.problems[0].says.startswith("the question is empty") and len(found) == 0
        return
    expected = by_the_call(kind, question, context, limit, overlap)
    if expected is None:
        assert found.problems[0].kind == "full" and "shorten the question" in found.problems[0].says
        return
    if found.problems:  # the library makes windows without room for a single token more than the overlap
        assert found.problems[0].kind == "full"
        assert any(len(ids) > limit for ids in expected["input_ids"])
        return
    assert rows_of(found) == expected["input_ids"]
    if "token_type_ids" in expected:
        assert [types for _, types in found.tokens.rows()] == expected["token_type_ids"]
    for window, (low, high) in enumerate(zip(found.tokens.starts[:-1], found.tokens.starts[1:], strict=True)):
        sequences = expected.sequence_ids(window)
        offsets = found.offsets[low:high].tolist()
        own = [place for place, sequence in enumerate(sequences) if sequence == 1]
        assert [place for place, pair in enumerate(offsets) if pair[0] != -1] == own
        for number, place in enumerate(own):
            ours, theirs = offsets[place], list(expected["offset_mapping"][window][place])
            if kind == "roberta" and window > 0 and number == 0:
                # Its processor takes the first token of every window for the first of a text, which owns its space.
                assert context[slice(*ours)].strip() == context[slice(*theirs)].strip()
            else:
                assert ours == theirs


@pytest.mark.parametrize("kind", FROM_THE_LEFT)
def test_texts_alone_and_many_at_once(kind: str) -> None:
    reader = text_tokenizer(tokenizer(kind))
    texts = [text for text in HOSTILE if not is_blank(text)] * 20  # more than one call takes
    together = text_windows(reader, texts, limit=16, overlap=5)
    alone = [text_windows(reader, [text], limit=16, overlap=5) for text in texts]
    assert rows_of(together) == [ids for one in alone for ids in rows_of(one)]
    assert together.rows.tolist() == [item for item, one in enumerate(alone) for _ in range(len(one))]
    assert together.offsets.tolist() == [pair for one in alone for pair in one.offsets.tolist()]
    assert together.items == len(texts) and max(together.tokens.lengths) <= 16


@settings(max_examples=60, deadline=None)
@given(words=st.integers(1, 90), limit=st.integers(8, 30), overlap=st.integers(0, 20))
def test_every_token_is_read_once_and_far_from_an_edge(words: int, limit: int, overlap: int) -> None:
    text = " ".join(["film"] * words)
    room = limit - 2
    found = text_windows(text_tokenizer(tokenizer("wordpiece")), [text], limit=limit, overlap=min(overlap, room - 1))
    chosen = deciding(found)
    begins = found.offsets[chosen, 0].tolist()
    assert begins == [5 * word for word in range(words)]
    around: dict[int, list[tuple[int, bool]]] = {}
    for window in range(len(found)):
        low, high = found.tokens.starts[window : window + 2].tolist()
        first, last = low + 1, high - 2
        for place in range(first, last + 1):
            left = place - first if window > 0 else words
            right = last - place if window < len(found) - 1 else words
            around.setdefault(int(found.offsets[place, 0]), []).append((min(left, right), bool(chosen[place])))
    if overlap <= room // 2:  # beyond that a token is in three windows, and the middle one would be best
        for places in around.values():
            assert max(distance for distance, _ in places) - next(d for d, read in places if read) <= 1


def test_words_keep_their_numbers() -> None:
    words = [["isn't", "don't", "(a", "film)", "漢字"], ["naïve", "café", "\u200b", "joke"]]
    for kind in ("wordpiece", "roberta", "unigram", "cased"):
        found = word_windows(text_tokenizer(tokenizer(kind)), words, limit=64)
        item = np.repeat(found.rows, found.tokens.lengths)
        for place in np.flatnonzero(found.inside).tolist():
            text, number = " ".join(words[item[place]]), int(found.words[place])
            start = sum(len(word) + 1 for word in words[item[place]][:number])
            low, high = found.offsets[place].tolist()
            assert text[low:high].strip() in text[start : start + len(words[item[place]][number])]


def test_an_empty_context_is_a_window_and_a_bad_one_a_problem() -> None:
    reader = text_tokenizer(tokenizer("wordpiece"))
    contexts: list[Any] = ["", "she wrote it", "cut \ud83d", 7, " \u200b"]
    found = question_windows(reader, ["who wrote it?"] * 5, contexts)
    assert found.rows.tolist() == [0, 1, 4] and not found.inside[: found.tokens.starts[1]].any()
    assert "half a character" in found.problems[2].says and "a int is not text" in found.problems[3].says
    asked: list[Any] = ["", 7, ("a", "b")]
    assert set(question_windows(reader, asked, ["a"] * 3).problems) == {0, 1, 2}
    assert len(question_windows(reader, [], [])) == 0 and len(text_windows(reader, [], limit=9)) == 0


def test_a_question_as_long_as_a_window() -> None:
    reader = text_tokenizer(tokenizer("wordpiece"))
    found = question_windows(reader, ["who " * 381, "who " * 300, "who " * 240], ["film " * 400] * 3)
    assert found.problems[0].says == (
        "the question has 381 tokens and leaves none for the context in windows of 384, which overlap by 128; shorten "
        "the question, or give a larger max_length"
    )
    assert "has 300 tokens and leaves 81 for the context" in found.problems[1].says
    assert set(found.rows.tolist()) == {2}
    # A context that fits needs no second window, however little room there is.
    assert len(question_windows(reader, ["who " * 300], ["film " * 81])) == 1
    assert (
        "leaves no room for text beside 2" in text_windows(reader, ["a good film"], limit=2, overlap=0).problems[0].says
    )


def test_a_hundred_pages() -> None:
    context = "she wrote it in the year 1923, and its plot is warm. " * 6000  # 318,000 characters
    found = question_windows(text_tokenizer(tokenizer("wordpiece")), ["who wrote it?"], [context])
    assert found.tokens.lengths.max() == 384 and len(found) > 200
    assert deciding(found).sum() == len({tuple(pair) for pair in found.offsets[found.inside].tolist()})
    assert found.offsets.max() == len(context) - 1


def test_which_tokens_an_answer_has() -> None:
    context = "naïve\t😀 (e\u0301t\u0301) 漢字 \U0001f468\u200d\U0001f469 plot"
    found = question_windows(text_tokenizer(tokenizer("wordpiece")), ["who?"], [context])
    for answer in ("naïve", "😀", "e\u0301t\u0301", "漢字", "\U0001f468\u200d\U0001f469", "plot", context):
        start = context.index(answer)
        first, last = token_span(found.offsets, start, start + len(answer))
        assert first > 0 and found.offsets[first, 0] == start
        # Its normalizer takes accents away: the last one is no token's.
        assert whole_span(context, start, int(found.offsets[last, 1])) == (start, start + len(answer))
    assert token_span(found.offsets, 3, 3) == (0, 0) and token_span(found.offsets, 0, len(context) + 1) == (0, 0)
    assert token_span(found.offsets[:1], 0, 1) == (0, 0)
    assert token_span(np.array([[-1, -1], [5, 8], [9, 12]]), 2, 8) == (0, 0)  # it begins before the window does


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="overlap = 384 must be from 0 to 383"):
        overlap_of(384, 384)
    assert (overlap_of(384, None), overlap_of(512, None), overlap_of(60, None)) == (128, 128, 20)
    with pytest.raises(ConfigError, match="need a fast tokenizer"):
        text_windows(CalledTokenizer(tokenizer("wordpiece")), ["a"], limit=9)
