"""Entities are seqeval's and those of the transformers pipeline; words are read once, by their first token."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from tests.tokenizing.kinds import tokenizer
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.tags import chunks, find_entities, first_tokens, word_tags
from thresher.tokenizing.windows import text_windows, word_windows

BIOES = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "A-B"))]
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@settings(max_examples=400, deadline=None)
@given(tags=st.lists(st.sampled_from(BIOES), max_size=12))
def test_the_entities_that_seqeval_finds(tags: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [(label, first, last + 1) for label, first, last in get_entities(tags)]
    assert chunks(tags) == expected


def test_tags_without_a_prefix_and_with_other_ones() -> None:
    assert chunks(["PER", "PER", "O", "LOC", "PER"]) == [("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5)]
    assert chunks(["U-PER", "B-LOC", "L-LOC", "I-LOC"]) == [("PER", 0, 1), ("LOC", 1, 3), ("LOC", 3, 4)]
    assert chunks([]) == [] and chunks(["O", "X-PER"]) == [("X-PER", 1, 2)]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    import torch
    from transformers import BertConfig, BertForTokenClassification, TokenClassificationPipeline

    torch.manual_seed(0)
    own = tokenizer("cased")
    config = BertConfig(
        vocab_size=len(own),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        id2label=dict(enumerate(BIO)),
        initializer_range=0.6,
    )
    return TokenClassificationPipeline(
        model=BertForTokenClassification(config).eval(), tokenizer=own, aggregation_strategy="first", device="cpu"
    )


def test_the_entities_of_the_librarys_pipeline(pipeline: Any) -> None:
    import torch

    texts = ["the plot, the cast; and 漢字 12 times", "who wrote it? she wrote it in 1923", "a warm joke don't stop"]
    for text in texts:
        windows = text_windows(text_tokenizer(pipeline.tokenizer), [text], limit=64)
        with torch.no_grad():
            ids = torch.tensor(windows.tokens.ids[None].astype(np.int64))
            logits = pipeline.model(input_ids=ids).logits[0].numpy()
        (found,) = find_entities(windows, logits, BIO)
        expected = pipeline(text)
        assert found and len(expected) > 1
        assert [(one.label, one.start, one.end) for one in found] == [
            (one["entity_group"], one["start"], one["end"]) for one in expected
        ]
        assert np.allclose([one.score for one in found], [one["score"] for one in expected], atol=1e-6)


def test_a_word_is_read_once_however_many_windows_have_it() -> None:
    words = [["film"] * 40, ["naïve", "漢字漢字", "x" * 50, "joke"]]
    reader = text_tokenizer(tokenizer("wordpiece"))
    windows = word_windows(reader, words, limit=12, overlap=4)
    assert len(windows) > 4
    places = first_tokens(windows)
    item = np.repeat(windows.rows, windows.tokens.lengths)[places]
    pairs = list(zip(item.tolist(), windows.words[places].tolist(), strict=True))
    assert pairs == [(i, word) for i, one in enumerate(words) for word in range(len(one))]
    logits = np.zeros((windows.tokens.total, len(BIO)))
    logits[places, 1 + np.arange(len(places)) % 2] = 1.0
    found = word_tags(windows, logits, [len(one) for one in words])
    assert np.concatenate(found).tolist() == [1 + n % 2 for n in range(44)]


def test_entities_across_windows_and_words_without_tokens() -> None:
    text = " ".join(["film"] * 40)
    windows = text_windows(text_tokenizer(tokenizer("wordpiece")), [text, ""], limit=12, overlap=4)
    logits = np.zeros((windows.tokens.total, len(BIO)))
    logits[windows.inside & (windows.offsets[:, 0] >= 50), 2] = 5.0
    first, none = find_entities(windows, logits, BIO)
    assert none is None and first is not None
    assert [(one.label, one.start, one.end) for one in first] == [("PER", 50, len(text))]
    missing = word_windows(text_tokenizer(tokenizer("wordpiece")), [["a", "\u0301", "film"]], limit=12)
    (tags,) = word_tags(missing, np.ones((missing.tokens.total, 2)), [3])
    assert tags.tolist() == [0, -1, 0]
    with pytest.raises(ValueError, match="expected"):
        find_entities(windows, logits[:, :2], BIO)
