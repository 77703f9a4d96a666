"""A new head on somebody's encoder: what the folder's own head is matters only where it is more than pooling."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from tests.models.families import WITHOUT_SPANS
from tests.models.saved import refused
from tests.models.sentences import TEXTS, cross_encoder_folder, embedder_folder, write
from thresher.errors import ModelError
from thresher.models.checkpoint import load_dense

NEW_HEAD: dict[str, Any] = {"num_labels": 3}


@pytest.mark.parametrize(
    "made",
    [
        {"pooling": {"pooling_mode_max_tokens": True}},
        {"pooling": {"pooling_mode": ["cls", "mean"]}},
        {"kinds": ("Transformer", "Pooling", "Dense")},
        {"kinds": ("Transformer",)},
    ],
)
def test_of_an_embedder_only_the_encoder_is_taken(made: dict[str, Any], tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, **made)
    with refused(ModelError, "not supported yet"):
        load_dense(folder)
    model, tokenizer = load_dense(folder, **NEW_HEAD)
    assert model.classifier.out_features == 3
    inputs = tokenizer(TEXTS[:1], return_tensors="pt")
    with torch.inference_mode():
        wanted = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
        torch.testing.assert_close(model.eval().base_model(**inputs).last_hidden_state, wanted)


def test_what_changes_the_encoder_itself_stays_refused(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path / "a", transformer={"config_args": {"hidden_act": "relu"}})
    with refused(ModelError, "sets config_args (hidden_act)"):
        load_dense(folder, **NEW_HEAD)
    folder = embedder_folder(tmp_path / "b", kinds=("Pooling", "Normalize"))
    with refused(ModelError, "is made of the modules Pooling, Normalize"):
        load_dense(folder, **NEW_HEAD)


@pytest.mark.parametrize("architecture", ["BertForMultipleChoice", "BertForNextSentencePrediction"])
def test_heads_that_are_more_than_pooling_stay_refused(architecture: str, tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path, architectures=[architecture])
    with refused(ModelError, f"{architecture} is not supported yet"):
        load_dense(folder, **NEW_HEAD)
    write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    with refused(ModelError, f"is a cross-encoder made of {architecture}"):
        load_dense(folder, **NEW_HEAD)


@pytest.mark.parametrize("family", WITHOUT_SPANS)
def test_a_head_that_the_library_does_not_have(family: str, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, family)
    with refused(ModelError, f"has no QuestionAnswering for '{family}'", "take a model of a family that has one"):
        load_dense(folder, means="span", num_labels=2)
    assert load_dense(folder, means="tags", **NEW_HEAD)[0].classifier.out_features == 3
