"""Scores compared on a dense model as it is: every combination costs the same, and the table shows each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli import tiny
from thresher.experiments import scores
from thresher.models.checkpoint import load_dense
from thresher.tasks import load_task

CONFIG: dict[str, Any] = {
    "models": ["tiny"],
    "seeds": [0],
    "targets": [0.7],
    "tasks": {"sst2": {"name": "SST-2"}},
}


@pytest.fixture
def task(tmp_path: Path) -> Any:
    folder = tmp_path / "data" / "sst2"
    folder.mkdir(parents=True)
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(60)]
    tiny.write_rows(folder / "train.jsonl", rows[:40])
    tiny.write_rows(folder / "validation.jsonl", rows[40:])
    return load_task("sst2", data=tmp_path / "data")


def test_every_score_and_rule_at_the_same_cost(task: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = tiny.save_model(tmp_path / "model", tiny.config(num_hidden_layers=6), head=True)
    assert load_dense(model)[0].config.num_hidden_layers == 6
    keys = scores.keys(CONFIG)
    assert [(key["score"], key["rule"]) for key in keys] == [
        ("attention", "threshold"),
        ("attention", "top-k"),
        ("value", "threshold"),
        ("value", "top-k"),
    ]
    rows = [{**key, **scores.compared(model, task, key)} for key in keys]
    for row in rows:
        assert row["relative_flops"] == pytest.approx(0.7, abs=0.08)
        assert 0 <= row["agreement"] <= 1 and row["divergence"] >= 0
        assert row["shares"] == sorted(row["shares"], reverse=True)
    assert rows[0]["divergence"] != rows[2]["divergence"], "the scores choose other tokens"
    (line,) = scores.table(rows, CONFIG).splitlines()[2:]
    assert line.startswith("| SST-2 | tiny | 0.7 |") and line.count("@") == 4
