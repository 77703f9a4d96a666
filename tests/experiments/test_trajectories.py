"""The experiment of trajectories: from a tiny run to record, table and figure; and the run is trained once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.experiments import finished, histograms, trajectories
from thresher.experiments.experiment import Setting
from thresher.experiments.runner import RECORDS, read_config, read_records, run

ROOT = Path(__file__).parents[2] / "experiments"
CONFIG = {"samples": 5, "layers": [0, 2]}


def test_two_experiments_train_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = runs.train_here(monkeypatch)
    setting = Setting(runs.config("sst2", **CONFIG), **runs.places(tmp_path))
    for module in (trajectories, histograms):
        name = module.__name__.rpartition(".")[2]
        run(module, tmp_path / name, setting, command=f"thresher reproduce {name}")  # type: ignore[arg-type]
    assert trained == ["dense-sst2-tiny-0", "sst2-tiny-lat-0.6-0", "sst2-tiny-thresher-0.6-0"]
    rows = [row for name in ("trajectories", "histograms") for row in read_records(tmp_path / name / RECORDS)]
    assert str(tmp_path) not in json.dumps(rows) and all(row["rows"] == 30 for row in rows)
    lat, learned = rows[:2]
    check_trajectories(learned, lat)
    for path, counted in zip(rows[:2], rows[2:], strict=True):
        assert path["accuracy"] == counted["accuracy"]
        check_histogram(counted, mean=path["mean"])


def check_trajectories(learned: Any, lat: Any) -> None:
    assert learned["counts"] is None and len(lat["counts"]) == tiny.LAYERS
    for row in (learned, lat):
        samples = np.array(row["samples"])
        assert samples.shape == (5, tiny.LAYERS + 1) and len(row["mean"]) == tiny.LAYERS + 1
        assert (np.diff(samples[:, 0]) >= 0).all() and (np.diff(samples, axis=1) <= 0).all()
    assert all(layer[-1] == 1 for layer in learned["samples"])  # what the head reads
    assert np.array(lat["samples"])[:, 1:].max(axis=0).tolist() <= lat["counts"]


def check_histogram(row: Any, *, mean: list[float]) -> None:
    assert {len(layers) for layers in row["counts"].values()} == {tiny.LAYERS + 1}
    for layer, expected in enumerate(mean):
        right, wrong = (histograms.lengths_of(row, side, layer) for side in ("right", "wrong"))
        assert len(right) == round(30 * row["accuracy"]) and len(right) + len(wrong) == 30
        assert np.concatenate([right, wrong]).mean() == pytest.approx(expected)


def test_samples_at_even_distances() -> None:
    assert trajectories.evenly(np.array([9, 1, 5, 3, 7]), 3).tolist() == [1, 2, 0]
    assert trajectories.evenly(np.array([4, 2]), 3).tolist() == [1, 1, 0]


@pytest.mark.parametrize("module", [trajectories, histograms])
def test_a_run_that_the_deadline_stops_is_not_a_row(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "trained_run", lambda *args, **named: None)
    setting = Setting(runs.config("sst2", **CONFIG), **runs.places(tmp_path))
    assert module.measure(module.keys(setting.config)[0], setting) is None


def made(method: str, mean: list[float], counts: list[int] | None) -> Any:
    row = {"task": "sst2", "model": "tiny", "method": method, "target": 0.5, "seed": 0}
    return {**row, "accuracy": 0.9, "relative_flops": 0.5, "samples": [[6, 4, 1], [9, 5, 1]], "mean": mean} | {
        "counts": counts
    }


@pytest.mark.parametrize("rivals", [0, 1])
def test_page_and_figure(rivals: int, tmp_path: Path) -> None:
    rows = [made("thresher", [8.0, 4.0, 1.0], None), made("lat", [8.0, 7.0, 5.0], [7, 5])][: 1 + rivals]
    page = tmp_path / "README.md"
    page.write_text("<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    written = trajectories.publish(rows, tmp_path, read_config(ROOT / "trajectories"))
    assert [file.name for file in written] == ["README.md", "trajectories.svg", "trajectories.png"]
    assert all(file.stat().st_size > 0 for file in written)
    fewer = "20.0% | 12.08%" if rivals else " | "  # 6 tokens per layer against 7.5
    assert f"| SST-2 | thresher | 90.00 | 0.500 | 6.0 | {fewer} |" in page.read_text(encoding="utf-8")


def test_the_committed_settings_let_them_share_runs() -> None:
    ours, theirs = (read_config(ROOT / name) for name in ("trajectories", "histograms"))
    assert trajectories.keys(ours) == histograms.keys(theirs) and len(trajectories.keys(ours)) == 4
    assert ours["train"] == theirs["train"] and ours["methods"] == theirs["methods"]
    assert all(about["train"] == theirs["tasks"][task]["train"] for task, about in ours["tasks"].items())
