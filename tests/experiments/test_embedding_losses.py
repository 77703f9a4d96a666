"""What pruning does to pairs of embeddings, on vectors whose errors are known."""

import json
from pathlib import Path

import numpy as np
import pytest

from thresher.experiments import embedding_losses
from thresher.experiments.embedding_losses import of_pairs

PAIRS = 60


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dense embeddings, lengths and labels: more similar pairs have higher labels, and every third pair is long."""
    random = np.random.default_rng(seed)
    labels = np.linspace(0, 5, PAIRS)
    first = unit(random.normal(size=(PAIRS, 16)))
    other = unit(random.normal(size=(PAIRS, 16)))
    second = unit(first * labels[:, None] + other * (5 - labels)[:, None])
    lengths = np.where(np.arange(PAIRS)[:, None] % 3 == 0, 30, 10).repeat(2, axis=1)
    return np.stack([first, second], axis=1), lengths, labels


def test_what_is_not_pruned_loses_nothing() -> None:
    dense, lengths, labels = made()
    found = of_pairs(dense, dense, lengths, labels)["all"]
    assert found["pairs"] == PAIRS and found["dense"] == found["pruned"] > 0.9
    assert found["error_std"] == found["together"] == 0 and found["cosine_to_dense"] == pytest.approx(1)


def test_errors_are_found_where_they_are() -> None:
    """Long pairs are shifted to one side, both texts alike; short ones stay."""
    dense, lengths, labels = made()
    shift = np.zeros((PAIRS, 1, 16))
    shift[lengths[:, 0] == 30, :, 0] = 2.0
    found = of_pairs(dense, unit(dense + shift), lengths, labels)
    short, _, long = found["by_length"]
    assert (short["tokens"], long["tokens"]) == (10, 30) and long["cosine_to_dense"] < 0.8
    assert sum(part["pairs"] for part in found["by_length"]) == sum(p["pairs"] for p in found["by_similarity"]) == PAIRS
    assert long["together"] > 0.5 and long["pair_cosine_pruned"] > long["pair_cosine_dense"] + 0.2
    assert short["cosine_to_dense"] == pytest.approx(1) and short["error_std"] == pytest.approx(0, abs=1e-9)


def test_the_page_is_drawn_from_the_newest_record(tmp_path: Path) -> None:
    dense, lengths, labels = made()
    for seed in (1, 2):
        noise = np.random.default_rng(seed).normal(size=dense.shape) * 0.2 * seed
        record = of_pairs(dense, unit(dense + noise), lengths + np.arange(PAIRS)[:, None], labels)
        with (tmp_path / "losses.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    (tmp_path / "README.md").write_text("<!-- losses -->\n<!-- end -->\n", encoding="utf-8")
    embedding_losses.main(["--folder", str(tmp_path)])
    lines = (tmp_path / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + 2 + 1 + 3 + 5
    assert f"{100 * record['all']['pruned']:.1f}" in lines[3]
