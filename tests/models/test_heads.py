"""What a model in memory means, by its own word or its configuration's, and never by a guess."""

from typing import Any

import pytest
from torch import nn
from transformers import AutoModel, BertForMaskedLM, BertForMultipleChoice

from tests.models.families import tiny_config, tiny_model
from tests.models.saved import refused
from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.embedder import Embedder
from thresher.models.heads import head_of, set_head_


def test_an_embedder_has_its_own() -> None:
    head = Head(reads="mean", means="embedding", normalised=True)
    assert head_of(Embedder(AutoModel.from_config(tiny_config("bert")), head)) is head


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForMultipleChoice])
def test_other_heads_are_refused_by_name(kind: Any) -> None:
    with refused(ModelError, f"{kind.__name__} is not supported yet", "never replaces a head in silence"):
        head_of(kind(tiny_config("bert")))


def test_what_is_no_model_is_refused() -> None:
    with refused(ModelError, "Linear is not a Hugging Face model"):
        head_of(nn.Linear(1, 1))


def test_a_user_may_say_that_a_value_is_a_score() -> None:
    model = tiny_model("bert", num_labels=1)
    assert head_of(model).means == "value"
    set_head_(model, Head(means="score"))
    assert head_of(model) == Head(means="score")


@pytest.mark.parametrize(
    ("labels", "head", "message"),
    [
        (3, Head(means="score"), "a score is one output, and the model has 3"),
        (3, Head(means="value"), "a value is one output, and the model has 3"),
        (1, Head(means="classes"), "classes are at least two outputs, and the model has 1"),
        (3, Head(reads="mean", means="embedding"), "BertForSequenceClassification gives no embedding that reads mean"),
        (3, Head(reads="tokens", means="tags"), "gives no tags that reads tokens"),
    ],
)
def test_outputs_must_fit_what_they_mean(labels: int, head: Head, message: str) -> None:
    with refused(ModelError, message):
        set_head_(tiny_model("bert", num_labels=labels), head)


@pytest.mark.parametrize(
    ("labels", "problem", "message"),
    [(3, "regression", "a value is one output, and the model has 3"), (2, "guessing", "problem_type = 'guessing'")],
)
def test_a_configuration_must_make_sense(labels: int, problem: str, message: str) -> None:
    model = tiny_model("bert", num_labels=labels)
    object.__setattr__(model.config, "problem_type", problem)  # the library checks its own assignments
    with refused(ModelError, message):
        head_of(model)
