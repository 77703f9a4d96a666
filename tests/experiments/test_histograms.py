"""The experiment of histograms from its records on; test_trajectories.py has both experiments on one tiny run."""

from pathlib import Path
from typing import Any

import pytest

from thresher.experiments import histograms
from thresher.experiments.runner import read_config

ROOT = Path(__file__).parents[2] / "experiments" / "histograms"


def made(right: list[list[int]], wrong: list[list[int]]) -> Any:
    row = {"task": "qnli", "model": "tiny", "method": "thresher", "target": 0.5, "seed": 0}
    return {**row, "accuracy": 0.5, "counts": {"right": right, "wrong": wrong}}


# Texts of 4 and 6 tokens are right, of 2 and 8 wrong; the layer keeps 3 of the right ones and 1 of the wrong.
ROW = made([[0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 2]], [[0, 0, 1, 0, 0, 0, 0, 0, 1], [0, 2]])


def test_counts_give_the_lengths_back() -> None:
    assert histograms.lengths_of(ROW, "right", 0).tolist() == [4, 6]
    assert histograms.lengths_of(ROW, "wrong", 1).tolist() == [1, 1]


def test_correlation_of_tokens_and_being_right() -> None:
    assert histograms.correlation(ROW, 0) == pytest.approx((0.0, 0.98))
    assert histograms.correlation(ROW, 1) == pytest.approx((1.0, 0.98))
    assert histograms.correlation(made([[0, 2]], [[0, 3]]), 0) is None  # all keep one token
    assert histograms.correlation(made([[0, 2, 1]], [[]]), 0) is None  # nothing is wrong


@pytest.mark.parametrize("wrong", [ROW["counts"]["wrong"], [[], []]], ids=["some wrong", "none wrong"])
def test_page_and_figure(wrong: list[list[int]], tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    config = {**read_config(ROOT), "layers": [0, 1, 6]}  # the model has one layer
    written = histograms.publish([made(ROW["counts"]["right"], wrong), ROW], tmp_path, config)
    assert [file.name for file in written] == ["README.md", "histograms.svg", "histograms.png"]
    assert all(file.stat().st_size > 0 for file in written)
    text = page.read_text(encoding="utf-8")
    assert "| QNLI | thresher | 50.00 | 1 | 3.0 | 1.0 | +1.000 ± 0.980 |" in text and "| 6 |" not in text
