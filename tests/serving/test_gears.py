"""The dial under load: up before anybody is refused, down again after a while, never for those who refuse it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.serving.conftest import served, setting
from tests.serving.fakes import Clock, drain, job_of, server
from thresher.errors import CheckpointError, ConfigError
from thresher.serving.gears import FILE, HOLD_S, Gear, GearBox, Measured, gears_within, read_measured
from thresher.serving.house import House

GEARS = (Gear(1.0, 1.0, 0.99, 100), Gear(1.5, 1.5, 0.97, 150), Gear(2.0, 2.0, 0.93, 200))
TABLE = Measured(GEARS, tuple(i / 10 for i in range(11)), 100, {"thresher": "test"})


def test_pressure_shifts_up_at_once_and_down_after_a_while() -> None:
    box = GearBox(GEARS)
    assert box.choose(1.0, 10.0, 0.0).dial == 1.0
    assert box.choose(6.0, 10.0, 1.0).dial == 1.5
    assert box.choose(6.0, 10.0, 1.1).dial == 1.5  # 4 seconds at this gear: no reason to go on
    assert box.choose(9.0, 10.0, 1.2).dial == 2.0
    assert box.choose(0.1, 10.0, 1.3).dial == 2.0  # too soon
    assert box.choose(0.1, 10.0, 1.2 + HOLD_S).dial == 1.5
    assert box.choose(2.5, 10.0, 9.0).dial == 1.5  # between the two marks nothing changes
    assert box.choose(0.1, 10.0, 9.0).dial == 1.0


def test_without_gears_the_dial_stays() -> None:
    assert GearBox().choose(1e9, 1.0, 0.0).dial == 1.0


def test_requests_that_refuse_it_are_computed_at_the_runs_own_dial() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, gears=GearBox(GEARS), best_speed=2.0, speed=lambda dial: dial)
    queue.put(job_of(clock, *[100] * 30, first=1000, degrade=False))
    queue.put(job_of(clock, *[100] * 60, first=1))
    drain(worker)
    for batch, dial in zip(engine.batches, engine.dials, strict=True):
        kinds = {number >= 1000 for number in batch}
        # A batch of both kinds is at the run's own dial, which is None.
        assert dial is None or kinds == {False}
    assert {*engine.dials} > {None}


@pytest.fixture
def geared(runs: Path, tmp_path: Path) -> Path:
    """A run with a table of gears."""
    shutil.copytree(runs / "classes", tmp_path / "classes")
    (tmp_path / "classes" / FILE).write_text(json.dumps(TABLE.to_dict()))
    return tmp_path


def test_a_shifted_gear_is_disclosed(geared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.serving.gears.PRESSED", -1.0)  # always under pressure
    monkeypatch.setattr("thresher.serving.gears.EASY", -2.0)
    with served(House([setting(geared, "classes", degrade=True, least_agreement=0.9)])) as client:
        good = {"inputs": [["the film is good"], ["a cold film"]]}
        assert client.post("/predict", good).status == 200
        reply = client.post("/predict", good)
        assert reply.headers["x-thresher-dial"] == "2" and reply.status == 200
        said = client.get("/metrics").body.decode()
        assert 'thresher_degraded_texts_total{run="classes"} 4.0' in said and 'thresher_dial{run="classes"} 2.0' in said
        for body, header in (({**good, "degrade": "never"}, {}), (good, {"x-thresher-degrade": "never"})):
            assert client.post("/predict", body, header).headers["x-thresher-dial"] == "1"
        assert 'thresher_degraded_texts_total{run="classes"} 4.0' in client.get("/metrics").body.decode()
        assert [gear["dial"] for gear in client.get("/info").json["runs"][0]["gears"]] == [1.0, 1.5, 2.0]


def test_where_all_is_dense_no_gear_counts(geared: Path) -> None:
    with served(House([setting(geared, "classes", degrade=True, least_agreement=0.9, on_drift="dense")])) as client:
        run = client.house.runs["classes"]
        assert run.queue.best_speed == 2.0 and len(run.gears.gears) == 3
        run.gears.now = 2
        run.drift._note("other texts")
        assert run.queue.best_speed == 1.0 and run.gears.gear == GEARS[0] and run.dial == 0.0
        reply = client.post("/predict", {"inputs": "the film is good"})
        assert reply.headers["x-thresher-dial"] == "0"
        assert 'thresher_dial{run="classes"} 0.0' in client.get("/metrics").body.decode()


def test_the_table_of_a_run_is_read_and_checked(tmp_path: Path) -> None:
    assert read_measured(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps(TABLE.to_dict()))
    assert read_measured(tmp_path) == TABLE
    for damaged in ("[]", "{", json.dumps({**TABLE.to_dict(), "kept": [1]}), json.dumps({"gears": []})):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(CheckpointError):
            read_measured(tmp_path)


def test_an_operator_says_how_far_it_goes() -> None:
    assert [gear.dial for gear in gears_within(TABLE, least_agreement=0.95, name="r")] == [1.0, 1.5]
    assert [gear.dial for gear in gears_within(TABLE, least_agreement=0.9, name="r")] == [1.0, 1.5, 2.0]
    with pytest.raises(ConfigError, match="thresher bench r --gears"):
        gears_within(None, least_agreement=0.9, name="r")
