"""Ten thousand words, and texts that say nothing, through every head: each a result that says it was cut, or an error
of its own that harms no other text."""

from typing import Any

import pytest

from tests.models.families import prune_with_, randomize_, tiny_config, tiny_model
from tests.models.sentences import WORDS
from tests.words import word_tokenizer
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.models.embedder import Embedder
from thresher.models.heads import set_head_

LONG = " ".join(WORDS[number % 10] for number in range(10_000))
BLANK = "\u200b \t"
OPTIONS: dict[str, dict[str, Any]] = {
    "classes": {},
    "labels": {"problem_type": "multi_label_classification"},
    "value": {"num_labels": 1},
    "score": {"num_labels": 1},
}


def engine_for(means: str) -> Engine:
    if means == "embedding":
        from transformers import AutoModel

        encoder = AutoModel.from_config(tiny_config("bert"))
        randomize_(encoder, 0)
        model: Any = Embedder(encoder.eval(), Head(reads="mean", means="embedding")).eval()
    else:
        model = tiny_model("bert", **OPTIONS[means]).float()
        if means == "score":
            set_head_(model, Head(means="score"))
    prune_with_(model)
    return Engine.from_model(model, word_tokenizer(WORDS), device="cpu", dtype="fp32")


@pytest.mark.parametrize("means", [*OPTIONS, "embedding"])
def test_long_and_blank_texts(means: str) -> None:
    engine = engine_for(means)
    pair = means == "score"
    texts = [LONG, "a film", BLANK]
    found = engine.predict_arrays([("the river", text) for text in texts] if pair else texts)
    assert found.truncated.tolist() == [True, False, False]
    assert found.tokens[0] == engine.max_length and found.tokens[1] < 10
    assert found.errors[:2].tolist() == [None, None] and "the text is empty" in found.errors[2]
    head = engine_for(means).predict_arrays([("the river", "a film") if pair else "a film"])
    assert found.outputs[1].tolist() == pytest.approx(head.outputs[0].tolist(), abs=1e-5), "the long one harms none"


@pytest.mark.parametrize("means", ["classes", "labels", "value"])
def test_two_long_texts(means: str) -> None:
    (found,) = engine_for(means).classify([(LONG, LONG)])
    assert found.truncated and found.error is None


def test_a_long_query_is_an_error_and_a_long_document_is_not() -> None:
    engine = engine_for("score")
    found = engine.classify([(LONG, "a film"), (LONG, LONG), ("a film", LONG)])
    assert ["leaves no room for the second" in str(one.error) for one in found] == [True, True, False]
    assert [one.truncated for one in engine.rank("a film", [LONG] * 3)] == [True] * 3
