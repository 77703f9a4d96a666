"""thresher bench --gears leaves a table in the run, which --degrade uses, and which no fingerprint of the run sees."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.tiny import succeeds
from tests.serving.conftest import served, setting
from tests.serving.test_gears import TABLE
from thresher.bulk.identity import run_fingerprint
from thresher.errors import ConfigError
from thresher.jobs.bench import bench
from thresher.serving.gears import FILE, read_measured
from thresher.serving.house import House


def test_gears_are_measured_kept_and_used(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "classes"
    shutil.copytree(runs / "classes", run)
    before = run_fingerprint(run)
    texts = runs.parent / "classes.txt"
    said = succeeds("bench {run} --gears --texts {texts} --rows 60 --device cpu", run=run, texts=texts)
    assert "agreement with dense" in said.out and run_fingerprint(run) == before
    measured = read_measured(run)
    assert measured is not None and measured.texts == 60 and measured.gears[0].dial == 1.0
    assert all(0 <= gear.agreement <= 1 for gear in measured.gears) and sorted(measured.kept) == list(measured.kept)
    whole = measured.kept
    succeeds("bench {run} --gears --texts {texts} --rows 60 --device cpu --max-length 4", run=run, texts=texts)
    cut = read_measured(run)
    assert cut is not None and cut.kept != whole  # of texts that were cut to four tokens
    with served(House([setting(tmp_path, "classes", degrade=True, least_agreement=0.0)])) as client:
        reply = client.post("/predict", {"inputs": "the film is good", "degrade": "never"})
        assert reply.status == 200 and reply.headers["x-thresher-dial"] == "1"
        assert client.get("/info").json["runs"][0]["gears"][0]["dial"] == 1.0


def test_a_race_has_no_length_of_its_own(runs: Path) -> None:
    with pytest.raises(ConfigError, match="max-length = 4 is for --gears"):
        bench(runs / "classes", max_length=4)


def test_after_drift_answers_are_dense_and_say_so(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "classes"
    shutil.copytree(runs / "classes", run)
    (run / FILE).write_text(json.dumps(TABLE.to_dict()))
    with served(House([setting(tmp_path, "classes", on_drift="dense", shadow=1.0)])) as client:
        body = {"inputs": "the film is good and the plot is clever"}
        before = client.post("/predict", body).headers
        client.house.runs["classes"].drift.drifted = "for this test"
        after = client.post("/predict", body).headers
        assert (before["x-thresher-dial"], after["x-thresher-dial"]) == ("1", "0")
        assert float(after["x-thresher-kept-ratio"]) > float(before["x-thresher-kept-ratio"])
        assert 'thresher_drifted{run="classes"} 1.0' in client.get("/metrics").body.decode()
