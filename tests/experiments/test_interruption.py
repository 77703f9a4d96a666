"""`thresher reproduce` interrupted, terminated, called twice, or with a bug in a row: nothing runs on or is lost."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.errors import RunError
from thresher.experiments import lengths, trained
from thresher.experiments.experiment import Setting
from thresher.experiments.guard import alone_in
from thresher.experiments.runner import RECORDS, read_records

CONFIG = """
models = ["tiny"]
seeds = [0, 1, 2]
[tasks.sst2]
name = "SST-2"
target = { tiny = 0.6 }
"""
CALL = "reproduce table1 --folder {folder} --models {models} --data {data} --work {work}"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "experiments" / "table1").mkdir(parents=True)
    (tmp_path / "experiments" / "table1" / "config.toml").write_text(CONFIG, encoding="utf-8")
    return {"folder": tmp_path / "experiments", **runs.places(tmp_path)}


over = threading.Event()


@pytest.fixture
def safe_from_sigterm() -> Iterator[None]:
    """Where the command does not mind the signal, the test fails, and not all of pytest."""

    def unheard(*args: Any) -> None:
        raise AssertionError("nothing handles SIGTERM")

    over.clear()
    before = signal.signal(signal.SIGTERM, unheard)
    yield
    over.set()
    assert signal.signal(signal.SIGTERM, before) is unheard, "the command put back what it found"


def signal_at(started: Path, count: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send ourselves a signal as soon as so many trainings run, and whoever started them waits for their end."""
    waiting = threading.Semaphore(0)
    known: set[int] = set()

    def wait(seconds: float) -> None:
        if threading.get_ident() not in known:
            known.add(threading.get_ident())
            waiting.release()
        time.sleep(seconds)

    def send() -> None:
        for _ in range(count):
            waiting.acquire()
        runs.wait_for(started, count)
        if not over.is_set():  # where the test has failed by now, the signal would end pytest
            os.kill(os.getpid(), number)

    monkeypatch.setattr(trained, "time", SimpleNamespace(sleep=wait))
    threading.Thread(target=send, daemon=True).start()


def still_running(started: Path) -> list[int]:
    found = []
    for process in (int(file.name) for file in started.iterdir()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 0)  # asks only
            found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.usefixtures("safe_from_sigterm")
def test_what_was_started_ends_too(
    number: signal.Signals, parallel: int, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = runs.endless_trainings(tmp_path, monkeypatch)
    signal_at(started, parallel, number, monkeypatch)
    done = tiny.thresher(f"{CALL} --parallel {parallel}", **places)  # without the signal it would never end
    assert done.code == 1 and "has what was measured, and the same call goes on" in done.err
    assert len(list(started.iterdir())) == parallel, "rows that wait begin nothing"
    assert still_running(started) == []


def test_a_training_that_the_deadline_stops_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = runs.endless_trainings(tmp_path, monkeypatch)
    now = SimpleNamespace(monotonic=lambda: float(any(started.iterdir())))  # the deadline comes once it runs
    monkeypatch.setattr("thresher.experiments.experiment.time", now)
    setting = Setting({}, work=tmp_path / "work", deadline=1.0)
    assert not trained.ensured(["prune"], tmp_path / "work" / "run", setting)
    assert len(list(started.iterdir())) == 1
    assert still_running(started) == []


def test_one_call_at_a_time_in_a_work_folder(places: dict[str, Path], tmp_path: Path) -> None:
    with alone_in(places["work"]):
        done = tiny.thresher(CALL, **places)
        assert done.code == 1 and len(done.err.splitlines()) == 1
        assert "is in use by another `thresher reproduce`; wait until it ends, or give another --work" in done.err
        with alone_in(tmp_path / "other"):
            pass
    with alone_in(places["work"]):  # free again
        pass


def test_a_work_folder_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write in .*file: .*; give another --work"), alone_in(tmp_path / "file"):
        pass


def test_a_bug_in_a_row_is_named_by_its_type_and_place(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(words: Any, out: Path, setting: Setting) -> bool:
        return bool({}["quality"])

    monkeypatch.setattr(trained, "_finished", wrong)
    done = tiny.thresher(CALL, **places)
    assert done.code == 1 and "3 of 3 rows that are left failed" in done.err and len(done.err.splitlines()) == 1
    assert "sst2 tiny thresher 0.6 0: failed. KeyError: 'quality'" in done.out and "in wrong" in done.out


def test_rows_say_which_device_measured_them(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (places["folder"] / "lengths").mkdir()
    config = 'tokenizers = ["tiny"]\n[[tasks]]\ntask = "sst2"\nsplit = "validation"\n'
    (places["folder"] / "lengths" / "config.toml").write_text(config, encoding="utf-8")
    monkeypatch.setattr("thresher.hardware.choose_device", lambda: ("cuda", "it is there"))
    monkeypatch.setattr("thresher.records.device_name", lambda device: f"the name of {device}")
    monkeypatch.setattr(lengths, "measure", lambda key, setting: {"rows": 1})
    monkeypatch.setattr(lengths, "publish", lambda rows, folder, config: [])
    tiny.succeeds(CALL.replace("table1", "lengths"), **places)
    (row,) = read_records(places["folder"] / "lengths" / RECORDS)
    assert row["device"] == "the name of cuda"
