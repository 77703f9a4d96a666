"""The words of a string are those that people tag, whatever the tokenizer makes of their inside."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.kinds import tokenizer
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.tags import first_tokens
from thresher.tokenizing.windows import text_windows, word_windows
from thresher.tokenizing.words import divided, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("she lives in New York.", ["she", "lives", "in", "New", "York", "."]),
        ("(Reuters) - the U.S. and J. Doe's 'plan'!", None),
        ("AL-AIN 1996-12-06 don't 3.5%", ["AL-AIN", "1996-12-06", "don't", "3.5", "%"]),
        ("in group 5. A 's \u2019s", ["in", "group", "5", ".", "A", "'s", "\u2019s"]),
        ("the U.S.) ...", ["the", "U.S.", ")", ".", ".", "."]),
        ("at Amazon.com. e.g. 3.5. (2.5.) 3.40s.", "at Amazon.com . e.g. 3.5 . ( 2.5 . ) 3.40s .".split()),
        ("a Ph.D. in the U.S.'s X.", ["a", "Ph.D.", "in", "the", "U.S.", "'s", "X."]),
        ("cafe\u0301, \u0915\u093e!", ["cafe\u0301", ",", "\u0915\u093e", "!"]),
        ("\u6f22\u5b57 in\u4eac", ["\u6f22", "\u5b57", "in", "\u4eac"]),
        (" \t ", []),
    ],
)
def test_words(text: str, words: list[str] | None) -> None:
    found = [text[start:end] for start, end in words_of(text)]
    expected = ["(", "Reuters", ")", "-", "the", "U.S.", "and", "J.", "Doe", "'s", "'", "plan", "'", "!"]
    assert found == (expected if words is None else words)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("aS .'\u2019()s1\u6f22\u0301\t-\U0001f600"), max_size=16))
def test_every_character_but_spaces_is_of_one_word(text: str) -> None:
    spans = words_of(text)
    places = [place for start, end in spans for place in range(start, end)]
    assert places == [place for place, character in enumerate(text) if not character.isspace()]
    assert all(start < end for start, end in spans)


@pytest.mark.parametrize("kind", ["wordpiece", "cased", "roberta"])
def test_a_string_is_read_as_its_words_were_in_training(kind: str) -> None:
    """The tokenizer's own words are more: of 'U.S.' alone there are four."""
    words = ["the", "U.S.", "isn't", "AL-AIN", "1996-12-06", "good", ",", "film", "'s", "plot", "."] * 8
    reader, text = text_tokenizer(tokenizer(kind)), " ".join(words)
    given, own = word_windows(reader, [words], limit=40), text_windows(reader, [text], limit=40)
    found = divided(own, [text])
    assert len(first_tokens(own)) > len(words), "or the tokenizer would do"
    assert np.array_equal(first_tokens(found), first_tokens(given)) and np.array_equal(found.words, given.words)
