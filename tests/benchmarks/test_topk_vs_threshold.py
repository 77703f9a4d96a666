"""benchmarks/topk_vs_threshold.py: the methods choose the same tokens, and the script keeps and draws its records."""

from pathlib import Path

import pytest
import topk_vs_threshold as script
import torch
from measuring import read_rows

from thresher.engine.ragged import Ragged


def test_all_methods_choose_the_same_tokens() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.8, 0.2], [0.3, 0.7, 0.1, 0.6]])
    mask = script.select_threshold(scores, 0.5)
    for places in (script.select_topk(scores, 2), script.select_sort(scores, 2)):
        assert torch.equal(torch.zeros_like(mask).scatter(1, places, True), mask)
    hidden = torch.arange(8.0)[:, None]
    runs = Ragged.pack([torch.zeros(4, dtype=torch.long)] * 2)
    assert script.compact_threshold(scores, 0.5, hidden, runs).flatten().tolist() == [0, 2, 5, 7]
    assert sorted(script.compact_topk(scores, 2, hidden).flatten().tolist()) == [0, 2, 5, 7]


def test_measures_every_point_once_and_draws(tmp_path: Path) -> None:
    words = ["--runs", "5", "--width", "8", "--lengths", "16,32", "--threads", "1", "--out", str(tmp_path)]
    script.main(words)
    file = tmp_path / "topk_vs_threshold.jsonl"
    found = read_rows(file)
    assert [(row["length"], row["ratio"]) for row in found] == [(n, r) for n in (16, 32) for r in script.RATIOS]
    for row in found:
        assert {name: times["runs"] for name, times in row["ms"].items()} == {
            "select sort": 5,
            "select top-k": 5,
            "select threshold": 5,
            "compact top-k": 1,
            "compact threshold": 1,
        }
        assert str(tmp_path) not in row["command"]
    assert (tmp_path / "topk_vs_threshold.png").stat().st_size > 10_000
    assert script.table(found).count("\n") == 3
    script.main(words)
    assert read_rows(file) == found
    script.main(["--figure", "--out", str(tmp_path)])
    assert read_rows(file) == found


def test_figure_alone_needs_records(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds nothing to draw; measure without --figure"):
        script.main(["--figure", "--out", str(tmp_path)])
