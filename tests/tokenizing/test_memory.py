"""Words that are remembered: the tokenizer's own ids on every text, again and again, and nothing that grows."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.kinds import KINDS, tokenizer
from tests.tokenizing.test_read import HOSTILE, TEXTS
from thresher.tokenizing import memory
from thresher.tokenizing.fast import FastTokenizer, text_tokenizer
from thresher.tokenizing.memory import WordMemory
from thresher.tokenizing.read import tokens_of

WORDED = ("wordpiece", "cased", "untyped", "left", "template", "bare")
JOINTS = st.sampled_from([" ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1f", "\u00a0", "\u2028", "\u3000", "\x85", ""])


def remembering(kind: str) -> FastTokenizer:
    found = text_tokenizer(tokenizer(kind))
    assert isinstance(found, FastTokenizer)
    return found.apart()


READERS = {kind: remembering(kind) for kind in WORDED}  # one for all examples: what came before must not matter


def test_for_whom_there_is_a_memory() -> None:
    assert {kind for kind in KINDS if remembering(kind).memory is not None} == set(WORDED)
    assert FastTokenizer.of(tokenizer("wordpiece")).memory is None  # type: ignore[union-attr]  # its words may change


@pytest.mark.parametrize("kind", WORDED)
@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.tuples(TEXTS, JOINTS), max_size=4),
    pair=st.none() | TEXTS,
    limit=st.none() | st.integers(5, 40),
    cuts=st.sampled_from(["longest_first", "only_second"]),
)
def test_the_tokenizers_own_ids(
    kind: str, parts: list[tuple[str, str]], pair: str | None, limit: int | None, cuts: str
) -> None:
    text = "".join(part + joint for part, joint in parts)
    item: Any = text if pair is None else (text, pair)
    cuts = cuts if pair is not None else "longest_first"
    plain = FastTokenizer.of(tokenizer(kind))
    assert plain is not None
    expected = tokens_of(plain, [item], limit=limit, cuts=cuts)
    for _ in range(2):  # read, and then remembered
        found = tokens_of(READERS[kind], [item], limit=limit, cuts=cuts)
        assert found.rows() == expected.rows() and found.problems == expected.problems
        assert found.truncated.tolist() == expected.truncated.tolist()


def test_every_character_beside_every_kind_of_neighbour() -> None:
    """Whatever a character is to the normalizer, it is the same within a remembered text."""
    plain, own = FastTokenizer.of(tokenizer("wordpiece")), READERS["wordpiece"]
    assert plain is not None
    marks = [chr(code) for code in range(1, 0x3100) if not 0xD800 <= code < 0xE000]
    texts = [shape.format(mark) for mark in marks for shape in ("a{}b", "a {} b", "a {}", "{}b ,a")]
    found, expected = (tokens_of(each, texts, limit=None, cuts="longest_first") for each in (own, plain))
    assert found.rows() == expected.rows()


def test_special_tokens_in_a_text_are_the_tokenizers_business() -> None:
    own = READERS["wordpiece"].memory
    assert own is not None
    assert own.ids("a[SEP]b") is None
    assert own.ids("a [sep] [b] c") is not None


def test_a_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_WORDS", 16)
    reader = remembering("wordpiece")
    own = reader.memory
    assert own is not None
    for number in range(100):
        own.ids(f"word{number} {'x' * memory.LONGEST}y")
    assert 0 < len(own._words) <= 16
    assert not any(len(word) > memory.LONGEST for word in own._words)


class Polite:
    """The library, of which `encode` holds the interpreter for as long as it reads, and batches do not."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str, *given: Any, **more: Any) -> Any:
        assert len(text) <= memory.LONGEST, "all other threads stand still meanwhile"
        return self.inner.encode(text, *given, **more)


@pytest.mark.parametrize("text", ["x" * 5000, "\u00fc" * 5000, "a long film " * 500])
def test_other_threads_go_on_while_a_long_text_is_read(text: str) -> None:
    plain, polite = FastTokenizer.of(tokenizer("wordpiece")), remembering("wordpiece")
    assert plain is not None
    polite.inner = Polite(polite.inner)
    polite.memory = WordMemory.of(polite.inner)
    assert polite.memory is not None
    expected = tokens_of(plain, [text], limit=None, cuts="longest_first")
    assert tokens_of(polite, [text], limit=None, cuts="longest_first").rows() == expected.rows()
    how: Any = {"limit": 40, "cuts": "longest_first"}
    assert polite.characters(text, **how) == plain.characters(text, **how)
    assert polite.characters((text, "a"), **how) == plain.characters((text, "a"), **how)


def test_a_memory_does_not_travel_but_is_made_anew() -> None:
    reader = remembering("wordpiece")
    tokens_of(reader, HOSTILE, limit=None, cuts="longest_first")
    again = pickle.loads(pickle.dumps(reader))
    assert again.memory is not None and len(again.memory._words) == 0
    assert pickle.loads(pickle.dumps(FastTokenizer.of(tokenizer("roberta")))).memory is None


def test_many_added_tokens_or_odd_ones_leave_it_to_the_tokenizer() -> None:
    from copy import deepcopy

    inner = deepcopy(tokenizer("wordpiece").backend_tokenizer)
    assert WordMemory.of(inner) is not None
    inner.add_tokens(["good film"])  # which also stands in "góod\nfilm"
    assert WordMemory.of(inner) is None
    many = deepcopy(tokenizer("wordpiece").backend_tokenizer)
    many.add_special_tokens([f"<{number}>" for number in range(memory.MANY_ADDED)])
    assert WordMemory.of(many) is None
