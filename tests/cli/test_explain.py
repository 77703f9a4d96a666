"""What explain prints reads as the text."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.cli.conftest import Stock
from thresher.cli.explain import print_explanation
from thresher.evaluation.explain import Explanation, explain, unpruned

FOUND = Explanation(
    tokens=["<s>", "le", "ĠcafÃ©", "s", "Ġ[b]", "</s>"],
    pieces=[" <s>", " le", " café", "s", " [b]", " </s>"],
    dropped_at=[None, 1, 2, None, 2, 2],
    kept_per_layer=[5, 2],
    layers=2,
    label="good",
    probability=0.75,
    value=None,
    relative_flops=0.5,
    truncated=False,
)


def printed(*found: Explanation) -> list[str]:
    screen = Console(file=io.StringIO(), width=100)
    print_explanation(screen, *found)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_pieces_are_printed_as_text_with_spaces_where_words_begin() -> None:
    assert printed(FOUND)[0] == "<s> le₁ café₂s [b]₂ </s>₂"


def test_the_dense_model_s_decision_stands_beside() -> None:
    """Else a wrong answer looks like damage from pruning."""
    cost = "   tokens 6 -> 5 2   relative FLOPs 0.50"
    assert printed(FOUND)[1:] == [f"-> good (75.0%){cost}"]
    assert printed(FOUND, replace(FOUND, label="bad"))[1:] == ["-> good (75.0%), dense bad (75.0%)", cost]
    number = replace(FOUND, label="", probability=None, value=2.5)
    assert printed(number, number)[1] == "-> value 2.500, dense value 2.500"


def test_whose_attention_judges_is_said_where_it_is_not_that_of_all() -> None:
    said = "tokens are judged by what one token in 8 gives them"
    assert said in printed(replace(FOUND, queries="one token in 8")) and said not in printed(FOUND)
    assert replace(FOUND, queries="one token in 8").to_dict()["queries"] == "one token in 8"


def test_the_dense_decision_is_that_of_the_stock_model(stock: Stock) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(stock.head).eval()
    tokenizer = AutoTokenizer.from_pretrained(stock.head)
    with torch.no_grad():
        wanted = model(**tokenizer("the film is very good", return_tensors="pt")).logits.softmax(dim=-1)[0]
    found = explain(*unpruned(stock.head), "the film is very good")
    assert found.probability == pytest.approx(float(wanted.max()), abs=1e-6)
    assert found.label == model.config.id2label[int(wanted.argmax())]
    assert found.dropped_at == [None] * len(found.tokens)
