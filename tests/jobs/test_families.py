"""Newer families from end to end on tiny models: pruned by training, saved, loaded by the engine, and explained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.jobs.test_prune import QUICK
from tests.models.families import tiny_model
from tests.words import word_tokenizer
from thresher.models.checkpoint import load

TEXTS = ["a very good film and a warm plot", "the dull score", "a clever scene with the cold ending and joke film"]
LONG = {"max_position_embeddings": 128, "num_labels": 2}
CHANGES: dict[str, dict[str, Any]] = {
    "nomic_bert": LONG,
    "modernbert": {**LONG, "classifier_pooling": "mean", "sep_token_id": 3, "cls_token_id": 2},
    "deberta-v2": {**LONG, "conv_kernel_size": 3},
}


@pytest.mark.parametrize("name", CHANGES)
def test_pruned_saved_loaded_and_explained(name: str, stock: Stock, tmp_path: Path) -> None:
    dense, run = tmp_path / "dense", tmp_path / "run"
    tiny_model(name, **CHANGES[name]).float().save_pretrained(dense)
    word_tokenizer(tiny.WORDS, model_max_length=128).save_pretrained(dense)
    names = ["negative", "positive"]
    thresher.prune(str(dense), out=str(run), train=str(stock.rows), finetune="never", class_names=names, **QUICK)

    engine, checkpoint = thresher.Engine.load(run, device="cpu", dtype="fp32"), load(run)
    found = engine.predict_arrays(TEXTS)
    assert (found.kept.min(axis=1) < found.tokens).any(), "something is dropped"
    for text, kept, logits in zip(TEXTS, found.kept, found.outputs, strict=True):
        with torch.inference_mode():
            ours = checkpoint.model.eval()(**checkpoint.tokenizer(text, return_tensors="pt")).logits[0]
        np.testing.assert_allclose(logits, ours.numpy(), atol=1e-4)
        told = thresher.explain(checkpoint.model, checkpoint.tokenizer, text)
        assert told.kept_per_layer == kept.tolist()
        assert told.probability == pytest.approx(float(ours.softmax(-1).max()), abs=1e-4)
        assert told.tokens[1:-1] == text.split() and len(told.dropped_at) == len(told.tokens)
