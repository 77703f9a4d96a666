"""Experiments share a work folder: a run is taken by whoever would train the same one, and by nobody else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.baselines.lat import chosen_for
from thresher.experiments import fronts, histograms, tradeoff, trained, trajectories
from thresher.experiments.experiment import Key, Setting
from thresher.experiments.runner import read_config

ROOT = Path(__file__).parents[2] / "experiments"
KEY = {"task": "sst2", "model": "tiny", "method": "thresher", "target": 0.5, "seed": 0}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work folder; trainings only make their folders in it."""

    def finished(words: Sequence[str], out: Path, setting: Setting) -> bool:
        (out / "dense").mkdir(parents=True)
        return True

    monkeypatch.setattr(trained, "_finished", finished)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def setting_of(config: dict[str, Any], work: Path) -> Setting:
    return Setting(config, models=work.parent, data=work.parent, work=work)


def committed(name: str, work: Path) -> Setting:
    return setting_of(read_config(ROOT / name), work)


def dense_of(task: str, model: str, setting: Setting) -> str:
    key = {"task": task, "model": model, "seed": 0}
    found = trained.dense_model(key, setting, rows=["--task", task, "--data", str(setting.data)])
    assert found is not None
    assert runs.without_digest(found.parent.name) == f"dense-{task}-{model}-0"
    return found.parent.name


def run_of(key: Key, setting: Setting) -> str:
    found = trained.trained_run(key, setting)
    assert found is not None
    return found.name


def test_dense_models_of_experiments_that_train_them_differently_are_apart(work: Path) -> None:
    scores, search = (dense_of("mrpc", "minilm-l6", committed(name, work)) for name in ("scores", "search"))
    assert scores != search
    names = [dense_of("mrpc", "mpnet-base", committed(name, work)) for name in ("tradeoff", "recipe", "table1")]
    assert names[0] != names[1] and names[0] == names[2]
    assert len(list(work.iterdir())) == 4


@pytest.mark.parametrize("task", ["sst2", "qnli"])
def test_figures_share_the_runs_of_the_tradeoff(task: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LAT's runs at the middle target, one for each rate, serve all targets there; figures have one of their own."""
    settings = {name: committed(name, work) for name in ("tradeoff", "trajectories", "histograms")}
    key = {"task": task, "model": "mpnet-base", "method": "lat", "target": 0.46, "seed": 0}
    assert key in trajectories.keys(settings["trajectories"].config)
    assert key in histograms.keys(settings["histograms"].config)
    fronts_took = []
    monkeypatch.setattr(fronts, "trained_run", lambda *args, **words: fronts_took.append(run_of(*args)))
    for target in settings["tradeoff"].config["targets"]:
        assert tradeoff.measure({**key, "target": target}, settings["tradeoff"]) is None
    assert len(set(fronts_took)) == 3, "each row begins with another rate"
    assert all("-lat-0.46-" in name for name in fronts_took)
    assert len({run_of(key, settings[name]) for name in ("trajectories", "histograms")}) == 1
    learned = {**key, "method": "thresher"}
    assert len({run_of(learned, setting) for setting in settings.values()}) == 1


def with_train(**train: Any) -> dict[str, Any]:
    return {"train": train, "tasks": {"sst2": {"name": "SST-2"}}}


@pytest.mark.parametrize(
    ("ours", "theirs", "dense_too"),
    [
        (with_train(lr=0.1), with_train(lr=0.2), True),
        (with_train(hard_epochs=1), with_train(hard_epochs=2), False),
        (with_train(), {**with_train(), "methods": {"thresher": {"score": "attention"}}}, False),
    ],
)
def test_other_settings_are_another_run(ours: Any, theirs: Any, dense_too: bool, work: Path) -> None:
    settings = [setting_of(config, work) for config in (ours, theirs)]
    names = [run_of(KEY, setting) for setting in settings]
    assert names[0] != names[1] and {runs.without_digest(name) for name in names} == {"sst2-tiny-thresher-0.5-0"}
    dense = [dense_of("sst2", "tiny", setting) for setting in settings]
    assert (dense[0] != dense[1]) == dense_too


def test_the_same_settings_from_another_dense_model_are_another_run(work: Path) -> None:
    """A variant may put the rate of the fine-tuning right for the run, and only for it."""
    plain = {**with_train(lr=0.2), "variants": {"mine": {}}}
    put_right = {**with_train(lr=0.1), "variants": {"mine": {"lr": 0.2}}}
    key = {**KEY, "variant": "mine"}
    assert trained.resolved(key, plain) == trained.resolved(key, put_right)
    assert run_of(key, setting_of(plain, work)) != run_of(key, setting_of(put_right, work))


def test_how_settings_are_written_and_where_data_lies_makes_no_difference(work: Path) -> None:
    written = [with_train(lr=1e-1, hard_epochs=2), with_train(hard_epochs=2.0, lr=0.1)]
    settings = [setting_of(config, work) for config in written]
    (work.parent / "elsewhere").mkdir()
    moved = Setting(written[0], models=work.parent, data=work.parent / "elsewhere", work=work)
    assert len({run_of(KEY, setting) for setting in (*settings, moved)}) == 1


def test_other_files_are_other_rows(work: Path) -> None:
    setting = setting_of(with_train(), work)
    words = [["--train", f"/{place}/{name}.jsonl"] for place, name in (("a", "x"), ("b", "x"), ("a", "y"))]
    here, there, other = (trained.dense_model(KEY, setting, rows=rows) for rows in words)
    assert here == there != other


def test_a_row_of_lat_has_the_selection_score_of_its_own_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.train_here(monkeypatch)
    targets = [0.5, 0.6, 0.7]
    setting = Setting(runs.config("sst2", targets=targets), **runs.places(tmp_path))
    key = {**KEY, "method": "lat"}
    out = trained.trained_run({**key, "target": 0.6}, setting)
    assert out is not None
    manifest = tiny.manifest(out)
    assert trained.row_of(manifest)["selection_score"] == chosen_for(0.6, manifest["front"]).score
    lengths = [[count] * tiny.LAYERS for count in (3, 4, 5)]
    pairs = zip(lengths, targets, strict=True)
    front = [{"lengths": kept, "cost": cost, "score": cost / 10} for kept, cost in pairs]
    (out / "thresher.json").write_text(json.dumps({**manifest, "front": front}), encoding="utf-8")
    rows = [fronts.measure_on_front({**key, "target": target}, setting) for target in targets]
    assert [row and row["selection_score"] for row in rows] == [row["score"] for row in front]


def test_selection_rows_choose_among_the_rates_of_lat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rate scores better within the target; the first would be better, and costs too much."""
    runs.train_here(monkeypatch)
    variants = {"drop-20": {"length_drop": 0.2}, "drop-40": {"length_drop": 0.4}}
    setting = Setting(runs.config("sst2", targets=[0.5, 0.6], variants=variants), **runs.places(tmp_path))
    key = {**KEY, "method": "lat"}
    for name, cost, score in (("drop-20", 0.55, 0.9), ("drop-40", 0.5, 0.7)):
        out = trained.trained_run({**key, "target": 0.6, "variant": name}, setting)
        assert out is not None
        front = [{"lengths": [3] * tiny.LAYERS, "cost": 0.4, "score": 0.6}]
        front += [{"lengths": [4] * tiny.LAYERS, "cost": cost, "score": score}]
        (out / "thresher.json").write_text(json.dumps({**tiny.manifest(out), "front": front}), encoding="utf-8")
    tight, loose = (fronts.measure_on_front({**key, "target": target}, setting) for target in (0.5, 0.6))
    assert tight is not None and loose is not None
    assert (tight["selection_score"], loose["selection_score"]) == (0.7, 0.9)
    assert "--set length_drop=0.4" in tight["command"] and "--set length_drop=0.2" in loose["command"]
