"""A search where rows have no labels: the score is the agreement with the dense model, and the drop what is lost."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from tests.training.test_meanings import SEGMENT, rerank_task
from tests.training.tiny import Recorder, gated_model, quick, tiny_tokenizer
from thresher.config import SearchConfig
from thresher.models.heads import head_of
from thresher.training.search.chain import search


def test_a_reranker_is_searched_for_without_labels(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path / "run.partial", "finetune": False, "device": "cpu"}
    found = search(
        gated_model(outputs=1, dropout=0.0, **SEGMENT),
        tiny_tokenizer(),
        rerank_task(),
        quick(method="thresher", max_steps=30, hard_epochs=4.0),
        SearchConfig(max_drop=0.5, start_flops=0.8, max_trials=2),
        progress=Recorder,
        **options,
    )
    assert found.report["dense"]["score"] == pytest.approx(1.0)
    for point in found.report["points"]:
        assert point["drop"] == pytest.approx(1 - point["metrics"]["pearson"], abs=1e-6)
        assert point["interval"][0] <= point["drop"] <= point["interval"][1]
    assert found.report["within"] and head_of(found.model).means == "score"
