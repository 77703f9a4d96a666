"""Rerankers and embedders that learn from their dense selves: tiny ones, from the command to the table."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.sentences import WORDS, cross_encoder_folder, embedder_folder
from thresher.experiments import distilled, embeddings, reranker
from thresher.experiments.experiment import Setting
from thresher.experiments.rows import write_rows
from thresher.experiments.runner import RECORDS, in_order, read_config, read_records, run

ROOT = Path(__file__).parents[2] / "experiments"
QUICK = {"max_steps": 2, "batch_size": 8, "precision": "fp32", "max_length": 16, "soft_epochs": 0, "widths": [3.0]}


def sentence(start: int, count: int) -> str:
    return " ".join(WORDS[(start * 5 + i * (i + start)) % len(WORDS)] for i in range(count))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    data, models = tmp_path / "data", tmp_path / "models"
    cross_encoder_folder(models / "ranks")
    embedder_folder(models / "embeds")

    def pairs(first: int, queries: int, *, labels: bool) -> list[dict[str, Any]]:
        found = []
        for query in range(first, first + queries):
            for place in range(3):
                row = {
                    "group": f"q{query}",
                    "query": sentence(query, 2 + query % 2),
                    "document": sentence(query + place, 5),
                }
                found.append({**row, **({"label": int(place == query % 3)} if labels else {})})
        return found

    for name, rows in {"train": pairs(0, 8, labels=False), "selection": pairs(20, 4, labels=False)}.items():
        write_rows(data / "rerank" / f"{name}.jsonl.xz", rows)
        write_rows(data / "embed" / f"{name}.jsonl.xz", [{"text": row["document"]} for row in rows])
    write_rows(data / "rerank" / "here.jsonl.xz", pairs(40, 4, labels=True))
    similar = [{"text": sentence(i, 4), "pair": sentence(i + 1, 5), "label": i / 9} for i in range(10)]
    write_rows(data / "embed" / "stsb.jsonl.xz", similar)
    return {"models": models, "data": data, "work": tmp_path / "work"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "model", "task"),
    [(reranker, "ranks", "here"), (embeddings, "embeds", "stsb")],
    ids=["ranks", "embeds"],
)
def test_from_rows_to_the_table(
    experiment: Any, model: str, task: str, places: dict[str, Path], tmp_path: Path
) -> None:
    config = {"seeds": [0], "tasks": [task], "models": {model: [0.7]}, "names": {task: "here"}, "train": QUICK}
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "README.md").write_text("<!-- table -->\n<!-- end -->\n")
    failures: list[Exception] = []
    progress = run(
        experiment, folder, Setting(config, **places), command="c", on_failure=lambda key, error: failures.append(error)
    )
    assert not failures and (progress.measured, progress.left) == (1, 0)
    (row,) = read_records(folder / RECORDS)
    assert -1 <= row["pruned"] <= 1 and 0.4 < row["relative_flops"] < 1 and row["metric"] == experiment.KIND.metric
    assert row["dense"] == row["metrics_dense"][row["metric"]]
    assert str(tmp_path) not in json.dumps(row), "no folder of this machine"
    assert ("cosine" in row["metrics_pruned"]) == (model == "embeds")
    experiment.publish([row], folder, config)
    assert ("| here | 1 |" if model == "ranks" else "| embeds | 1 | 1 |") in (folder / "README.md").read_text()


@pytest.mark.parametrize("experiment", [reranker, embeddings], ids=["reranker", "embeddings"])
def test_the_pages_show_their_records(experiment: Any) -> None:
    folder = ROOT / experiment.__name__.rpartition(".")[2]
    config = read_config(folder)
    rows = in_order(read_records(folder / RECORDS), experiment, config)
    keys = [tuple(key.values()) for key in experiment.keys(config)]
    assert {tuple(row[name] for name in distilled.KEY) for row in rows} <= set(keys)
    made = experiment.table(rows, config) if experiment is reranker else experiment.table(rows)
    assert made in (folder / "README.md").read_text(encoding="utf-8")
