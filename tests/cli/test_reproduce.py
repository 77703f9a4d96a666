"""thresher reproduce: what its help names, and what it asks for."""

from pathlib import Path

from tests.cli import tiny
from thresher.cli import reproduce
from thresher.experiments import experiment


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
