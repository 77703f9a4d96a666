"""thresher reproduce: what its help names, and what it asks for."""

import tomllib
from pathlib import Path

import pytest

from tests.cli import tiny
from thresher.cli import reproduce
from thresher.experiments import experiment

ROOT = Path(__file__).resolve().parents[2]


def test_help_names_every_experiment() -> None:
    assert reproduce.NAMES == experiment.NAMES
    said = " ".join(tiny.succeeds("reproduce --help").out.replace("│", " ").split())
    assert f"the experiment's name: {', '.join(experiment.EXPERIMENTS)} " in said


def test_both_folders_are_asked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "table1").mkdir()
    config = 'models = ["tiny"]\nseeds = [0]\n[tasks.sst2]\ntarget = { tiny = 0.5 }\n'
    (tmp_path / "table1" / "config.toml").write_text(config, encoding="utf-8")
    done = tiny.thresher("reproduce table1 --folder {folder} --work {folder}/work", folder=tmp_path)
    assert done.code == 2 and "with --models DIR and --data DIR" in done.err and len(done.err.splitlines()) == 1


def test_an_installed_package_has_no_experiments_and_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["src/thresher/experiments"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = tiny.thresher("reproduce table1")
    assert done.code == 1 and "clone the repository and run this there" in done.err and len(done.err.splitlines()) == 1
