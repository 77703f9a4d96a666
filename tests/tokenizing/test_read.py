"""The fast way gives the ids, types and truncation of the library's own call, whatever the text; and every problem."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizing.kinds import KINDS, tokenizer
from thresher.tokenizing.called import CalledTokenizer
from thresher.tokenizing.fast import FastTokenizer, kept_places, longest_first, text_tokenizer
from thresher.tokenizing.read import problem_of, read_texts, tokens_of
from thresher.tokenizing.tokens import Tokens

HOSTILE = [
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301\u0301\u0301 n\u0303",
    "\x00a\x07\x1b[0m film",
    "[CLS] good [SEP] film [MASK]",
    "\u202egnp.exe \ufeff a",
    "漢字漢字漢字",
    "x" * 300,
    "a " * 400,
    "good film" * 40,
    "ﬁlm Σ ς İ",
    "\ufffda",
    "...,,,!!!",
    "",
    " ",
    "\u0301",
]
PIECES = st.sampled_from([*"a good film isn't the plot , ; 12 schön CAFÉ 漢字 x".split(), *HOSTILE[:6], "\u200b", "\n"])
TEXTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30),
    st.lists(PIECES, max_size=25).map(" ".join),
    st.sampled_from(HOSTILE),
)


def by_the_call(kind: str, item: Any, limit: int | None, cuts: str) -> tuple[list[int], list[int] | None] | None:
    """What the library's own call gives; None where it refuses."""
    pair = item[1] if isinstance(item, tuple) else None
    paired = pair is not None
    try:
        found = tokenizer(kind)(
            [item[0] if paired else item],
            [pair] if paired else None,
            truncation=False if limit is None else cuts,
            max_length=limit,
            verbose=False,
        )
    except Exception:
        return None
    return found["input_ids"][0], found["token_type_ids"][0] if "token_type_ids" in found else None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(
    text=TEXTS,
    pair=st.none() | TEXTS,
    limit=st.none() | st.integers(5, 40),
    cuts=st.sampled_from(["longest_first", "only_second"]),
)
def test_the_same_as_the_librarys_call(kind: str, text: str, pair: str | None, limit: int | None, cuts: str) -> None:
    item: Any = text if pair is None else (text, pair)
    cuts = cuts if pair is not None else "longest_first"
    fast = FastTokenizer.of(tokenizer(kind))
    assert fast is not None
    expected = by_the_call(kind, item, limit, cuts)
    whole = by_the_call(kind, item, None, cuts)
    assert whole is not None
    for reader in (fast, CalledTokenizer(tokenizer(kind))):
        found = tokens_of(reader, [item], limit=limit, cuts=cuts)
        if expected is None:
            assert found.problems[0].kind == "full" and found.total == 0
        elif not expected[0]:
            assert found.problems[0].kind == "nothing"
        else:
            assert found.problems == {}
            assert found.rows() == [expected]
            assert bool(found.truncated[0]) == (len(expected[0]) < len(whole[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_many_at_once(kind: str) -> None:
    """Texts and pairs mixed, short and long, in one call as one by one."""
    items: list[Any] = [
        item for text in HOSTILE for item in (text, (text, "the plot " * 9), ("who wrote it?", text or "a"))
    ]
    reader = text_tokenizer(tokenizer(kind))
    together = tokens_of(reader, items, limit=16, cuts="longest_first")
    alone = [tokens_of(reader, [item], limit=16, cuts="longest_first") for item in items]
    assert together.rows() == [one.rows()[0] for one in alone]
    assert together.truncated.tolist() == [bool(one.truncated[0]) for one in alone]
    assert together.problems == {i: one.problems[0] for i, one in enumerate(alone) if one.problems}
    joined = Tokens.joined(alone)
    assert joined.rows() == together.rows() and joined.problems == together.problems


def test_a_tokenizer_travels_to_another_process() -> None:
    reader = FastTokenizer.of(tokenizer("wordpiece"))
    again = pickle.loads(pickle.dumps(reader))
    items = ["a good film", ("who wrote it?", "she wrote it " * 20)]
    first, second = (tokens_of(each, items, limit=12, cuts="only_second") for each in (reader, again))
    assert first.rows() == second.rows() and first.truncated.tolist() == [False, True]


def test_what_was_called_before_does_not_count() -> None:
    """A tokenizer keeps the padding and truncation of its last call."""
    own = tokenizer("wordpiece")
    own(["a good film", "a"], padding="max_length", truncation=True, max_length=4)
    reader = text_tokenizer(own)
    own(["a good film", "a"], padding="max_length", truncation=True, max_length=4)
    assert (
        tokens_of(reader, ["a"], limit=40, cuts="longest_first").rows()[0][0]
        == by_the_call("wordpiece", "a", None, "longest_first")[0]
    )  # type: ignore[index]


def test_a_tokenizer_with_a_call_of_its_own_is_called() -> None:
    from transformers import PreTrainedTokenizerFast

    class Own(PreTrainedTokenizerFast):
        def _encode_plus(self, *given: Any, **options: Any) -> Any:
            return super()._encode_plus(*given, **options)

    own = Own(tokenizer_object=tokenizer("wordpiece").backend_tokenizer)
    assert isinstance(text_tokenizer(own), CalledTokenizer)
    assert isinstance(text_tokenizer(lambda texts: texts), CalledTokenizer)
    patched = PreTrainedTokenizerFast(tokenizer_object=tokenizer("wordpiece").backend_tokenizer)
    patched.set_truncation_and_padding = lambda **options: None  # type: ignore[method-assign]
    assert isinstance(text_tokenizer(patched), CalledTokenizer)


class PanicException(BaseException):
    """What Rust's panics are in Python: no Exception."""


class Failing(CalledTokenizer):
    """Fails on some words, as tokenizers do: for the whole batch, and without a name."""

    def encode(self, items: Any, *, limit: int | None, cuts: str) -> Any:
        for item in items:
            if "panic" in item:
                raise PanicException("called `Option::unwrap()` on a `None` value")
            if "stop" in item:
                raise KeyboardInterrupt
        return super().encode(items, limit=limit, cuts=cuts)


def test_a_failure_harms_only_its_text() -> None:
    items = ["a good film", "panic", "the plot", "the cast", "panic", "a film " * 20]
    found = read_texts(Failing(tokenizer("wordpiece")), items, limit=12)
    assert set(found.problems) == {1, 4} and found.truncated.tolist() == [False] * 5 + [True]
    assert found.problems[1].says.startswith("the tokenizer cannot read the text: called `Option")
    good = read_texts(text_tokenizer(tokenizer("wordpiece")), [items[i] for i in (0, 2, 3, 5)], limit=12)
    assert [row for i, row in enumerate(found.rows()) if i not in (1, 4)] == good.rows()
    with pytest.raises(KeyboardInterrupt):
        read_texts(Failing(tokenizer("wordpiece")), ["a", "stop"], limit=12)


@pytest.mark.parametrize(
    ("item", "pairs", "says"),
    [
        (7, None, "a int is not text; give a string, or two in a tuple"),
        (("a", "b", "c"), None, "3 texts in one item; give a text or a pair of texts"),
        (("a", 7), None, "a int is not text; give a string"),
        (("a", " \u200b"), None, "the text is empty; give at least one word"),
        ("\x00\u200b\ufffd\ufe0f", None, "the text is empty; give at least one word"),
        ("cut \ud83d", None, "half a character (a lone surrogate)"),
        ("a", True, "the model is for pairs of texts, and was given a single text"),
        (("a", "b"), False, "the model is for single texts, and was given a pair of texts"),
    ],
)
def test_what_is_no_text(item: Any, pairs: bool | None, says: str) -> None:
    problem = problem_of(item, pairs)
    assert problem is not None and says in problem.says
    found = read_texts(text_tokenizer(tokenizer("wordpiece")), ["a", item, "film"], limit=12)
    assert len(found) == 3 and (found.lengths > 0).tolist() == [True, pairs is not None, True]


@pytest.mark.parametrize(("pairs", "says"), [(False, "give a string"), (True, "give two strings in a tuple")])
def test_what_a_model_would_have_instead(pairs: bool, says: str) -> None:
    problem = problem_of(["a", "b"], pairs)
    assert problem is not None and problem.says == f"a list is not text; {says}"


def test_no_room_beside_special_tokens() -> None:
    reader = text_tokenizer(tokenizer("wordpiece"))
    found = read_texts(reader, [("a", "film"), "a good film"], limit=3)
    assert "max_length = 3 leaves no room for text beside 3 special tokens; give at least 4" in found.problems[0].says
    assert found.lengths.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("one", "two", "room", "stay"),
    [
        (3, 9, 10, (3, 7)),
        (9, 3, 10, (7, 3)),
        (9, 9, 7, (3, 4)),
        (8, 9, 6, (3, 3)),
        (2, 9, 3, (1, 2)),
        (5, 5, 0, (0, 0)),
    ],
)
def test_the_longer_text_gives_way(one: int, two: int, room: int, stay: tuple[int, int]) -> None:
    assert longest_first(one, two, room) == stay


def test_places_that_stay() -> None:
    sequences = [None, 0, 0, 0, None, 1, 1, None]
    assert kept_places(sequences, 1, cuts="longest_first", left=False) == [0, 1, 2, 4, 5, 6, 7]
    assert kept_places(sequences, 1, cuts="longest_first", left=True) == [0, 2, 3, 4, 5, 6, 7]
    assert kept_places(sequences, 1, cuts="only_second", left=False) == [0, 1, 2, 3, 4, 5, 7]
    assert kept_places(sequences, 2, cuts="only_second", left=False) is None


def test_flat_arrays() -> None:
    tokens = Tokens.of([[1, 2, 3], [4], [5, 6]], [[0, 0, 1], None, [1, 1]])
    assert tokens.types is not None and tokens.types.tolist() == [0, 0, 1, 0, 1, 1]
    assert tokens.take([2, 0]).rows() == [([5, 6], [1, 1]), ([1, 2, 3], [0, 0, 1])]
    assert tokens.between(1, 3).rows() == tokens.take([1, 2]).rows()
    assert np.shares_memory(tokens.between(1, 3).ids, tokens.ids)
    assert Tokens.joined([tokens, Tokens.of([[7]])]).rows()[-1] == ([7], [0])
    assert Tokens.of([]).total == 0 and len(Tokens.of([])) == 0
