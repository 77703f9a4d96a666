"""Texts far beyond what a model can take are cut before they are tokenized, and nobody can tell by the tokens."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.tasks.encode import encode
from thresher.tasks.task import Example
from thresher.text import beginning, reads_word_by_word
from thresher.tokenizing import read as module
from thresher.tokenizing.fast import FastTokenizer

CORPUS = ["a good film isn't bad", "the plot, the cast; and 漢字 12 times", "schön naïve CAFÉ [MASK] don't"]
LIMIT = 6


@cache
def tokenizer(kind: str) -> Any:
    """Trained on three lines: many words are unknown, and some have several pieces."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "bytes":
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.train_from_iterator(
            CORPUS, trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
        )
    else:
        inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=kind == "uncased")
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.train_from_iterator(
            CORPUS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
        )
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def encoded(kind: str, text: str, *, far: int) -> tuple[list[int], int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FAR", far)
        patch.setattr("thresher.text.FAR", far)
        found = encode(tokenizer(kind), [Example(text, None, 0)], max_length=LIMIT, positions=None)
    return found.rows[0].input_ids, found.truncated


PIECES = st.sampled_from(
    [
        *"a good film isn't the plot , ; 12 [MASK] schön CAFÉ 漢字 x".split(),
        "e\u0301",
        "\u0301",
        "\x00",
        "\u200b",
        "ﬁ",
        "Σ",
        "😀",
    ]
)
GAPS = st.sampled_from([" ", "  ", "\n", "\t ", "\u00a0", "", "\u3000", " \u0301"])


@pytest.mark.parametrize("kind", ["cased", "uncased", "bytes"])
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.tuples(PIECES, GAPS), min_size=1, max_size=30))
def test_tokens_are_the_same(kind: str, parts: list[tuple[str, str]]) -> None:
    text = "".join(piece + gap for piece, gap in parts) + "a"
    assert encoded(kind, text, far=0) == encoded(kind, text, far=10**9)


def test_little_is_read_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = FastTokenizer.encode

    def call(given: Any, items: Any, **options: Any) -> Any:
        lengths.extend(map(len, items))
        return real(given, items, **options)

    monkeypatch.setattr(FastTokenizer, "encode", call)
    ids, truncated = encoded("uncased", "a good film " * 100_000, far=50)
    assert len(ids) == LIMIT and truncated == 1 and max(lengths) < 100


def test_a_beginning_with_too_few_tokens_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may make nothing of a word."""
    monkeypatch.setattr(module, "beginning", lambda text, tokens: text[:3])
    assert encoded("uncased", "a  good film " * 100, far=1) == encoded("uncased", "a  good film " * 100, far=10**9)


def test_pairs_and_other_tokenizers_are_read_whole() -> None:
    from tokenizers import AddedToken, pre_tokenizers

    assert all(reads_word_by_word(tokenizer(kind)) for kind in ("cased", "uncased", "bytes"))
    pairs = [Example("a " * 1000, "b " * 1000, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "beginning", lambda text, tokens: "")
        assert encode(tokenizer("cased"), pairs, max_length=8, positions=None).lengths == [8]
    assert not reads_word_by_word(lambda texts: texts)
    for change in ("left", "added", "metaspace"):
        tokenizer.cache_clear()
        other = tokenizer("cased")
        if change == "left":
            other.truncation_side = "left"
        elif change == "added":
            other.add_tokens([AddedToken("good film")])
        else:
            other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        assert not reads_word_by_word(other), change
    tokenizer.cache_clear()


def test_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.text.FAR", 1)
    assert beginning("one two three four", 1) == "one two"
    assert beginning("one, two! three four", 1) == "one, two! three four", "a word's end, and then a space"
    assert beginning("one\ntwo three  four", 1) == "one\ntwo three", "other gaps are no place"
    assert beginning("x" * 100, 4) == "x" * 100
