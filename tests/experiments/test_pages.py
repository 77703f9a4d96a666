"""Committed pages are what committed records draw, and what one configuration says of another is true."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from thresher.experiments import plan
from thresher.experiments.experiment import EXPERIMENTS, experiment_named
from thresher.experiments.runner import RECORDS, chosen_keys, in_order, read_config, read_records

ROOT = Path(__file__).parents[2]
FRONT = "README.md"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pages, records and settings, in the same places."""
    place = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "experiments", place / "experiments", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    shutil.copy(ROOT / FRONT, place)
    yield place


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pages_are_what_their_records_draw(name: str, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw them anew: thresher reproduce NAME --draw. Figures are left out: they take long."""
    experiment, folder = experiment_named(name), copied / "experiments" / name
    config = read_config(folder)
    rows = in_order(read_records(folder / RECORDS), experiment, config)
    monkeypatch.setattr(experiment, "draw", lambda *given, **more: [], raising=False)
    if not rows:
        pytest.skip("nothing is measured yet")
    pages = experiment.publish(rows, folder, config)
    assert folder / FRONT in {page.absolute() for page in pages}
    for page in (folder / FRONT, copied / FRONT):
        there = ROOT / page.relative_to(copied)
        assert page.read_text(encoding="utf-8") == there.read_text(encoding="utf-8"), f"{name}: draw it anew"


def test_rows_that_another_experiment_measures_are_at_its_costs() -> None:
    others = read_config(ROOT / "experiments" / "table1")["others"]
    assert others
    for task, about in others.items():
        name = about["experiment"]
        keys = experiment_named(name).keys(read_config(ROOT / "experiments" / name))
        there = {(key["task"], key["model"], key["target"]) for key in keys if key["method"] == "thresher"}
        assert {(task, model, target) for model, target in about["target"].items()} <= there


def test_the_list_of_what_is_missing_is_up_to_date(copied: Path) -> None:
    """To write it anew: python -m thresher.experiments.plan"""
    plan.write(copied / "experiments")
    page = Path("experiments", FRONT)
    assert (copied / page).read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")


def test_the_commands_measure_all_that_is_missing() -> None:
    text = (ROOT / "experiments" / FRONT).read_text(encoding="utf-8")
    _, _, commands = text.partition("## Not run yet")
    named = re.findall(r"^    thresher reproduce (\w+) --models models --data data\b", commands, flags=re.M)
    assert list(dict.fromkeys(named)) == ["all", "int8"]
    for name in EXPERIMENTS:
        config = read_config(ROOT / "experiments" / name)
        together = {} if name in named else config.get("all", {}).get("only", {})
        measured = chosen_keys(experiment_named(name).keys(config), together)
        left = [key for key in plan.missing_keys(ROOT / "experiments", name) if key not in measured]
        assert all(key["model"] == "minilm-l6" for key in left), f"{name}: that one is for two cores"


def test_minutes_are_those_of_the_likest_runs() -> None:
    row = {"task": "rte", "model": "m", "method": "lat", "train_seconds": 10.0}
    records = {"here": [row], "there": [row | {"method": "ltp", "train_seconds": 30.0}, row | {"model": "n"}]}
    assert plan.seconds_of({"task": "rte", "model": "m", "method": "lat"}, records, "here") == 10
    assert plan.seconds_of({"task": "rte", "model": "m", "method": "ltp"}, records, "here") == 30, "measured elsewhere"
    assert plan.seconds_of({"task": "rte", "model": "m", "method": "power"}, records, "here") == 10, "the same task"
    assert plan.seconds_of({"task": "qqp", "model": "m", "method": "lat"}, {"here": []}, "here") == plan.GUESS


def test_minutes_on_the_gpu_are_of_runs_on_one() -> None:
    here, there = {"device": "NVIDIA H200"}, {"device": "AMD EPYC, 2 cores"}
    assert plan.on_gpu([here, there]) == [here]
