"""The timed probe: measured once, remembered for this processor, torch and number of threads, and never in the way."""

import json
from pathlib import Path

import pytest
import torch

from thresher.engine import probe as module
from thresher.engine.probe import cache_file, probe


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and every product timed since then; its milliseconds are their number."""
    found: list[str] = []

    def milliseconds(dtype: str) -> float:
        found.append(dtype)
        return float(len(found))

    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_milliseconds", milliseconds)
    monkeypatch.setattr(module, "_works", lambda dtype: True)
    return found


FIRST = {"fp32": 1.0, "bf16": 2.0, "int8": 3.0}


def test_what_is_remembered_is_not_measured_again(timed: list[str]) -> None:
    assert probe() == probe() == FIRST
    assert timed == ["fp32", "bf16", "int8", "fp32"], "one look whether the machine is still as fast"


def test_what_a_busy_machine_measured_is_not_believed(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A remembered time that can be halved; one that is now slower is believed, as the machine may be busy now."""
    probe()
    key = next(iter(json.loads(cache_file().read_text(encoding="utf-8"))))
    busy = {"fp32": 15.0, "bf16": 16.0, "int8": 68.0}
    cache_file().write_text(json.dumps({key: busy}), encoding="utf-8")
    monkeypatch.setattr(module, "_milliseconds", lambda dtype: 8.0)
    assert probe() == busy
    monkeypatch.setattr(module, "_milliseconds", lambda dtype: 7.0)
    assert probe() == {"fp32": 7.0, "bf16": 7.0, "int8": 7.0}
    monkeypatch.setattr(module, "_milliseconds", lambda dtype: 30.0)
    assert probe() == {"fp32": 7.0, "bf16": 7.0, "int8": 7.0}


def test_fresh_measures_again_and_is_remembered(timed: list[str]) -> None:
    probe()
    assert probe(cached=False) == probe() == {"fp32": 4.0, "bf16": 5.0, "int8": 6.0}
    assert timed.count("bf16") == 2


def test_another_number_of_threads_is_another_measurement(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    probe()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert probe() != FIRST
    monkeypatch.undo()
    assert len(timed) == 6


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"KEY": 3}',
        '{"KEY": {}}',
        '{"KEY": {"fp32": "fast", "bf16": 1}}',
        '{"KEY": {"fp32": 1.0}}',
        '{"KEY": {"fp32": NaN, "bf16": 1.0}}',
        '{"KEY": {"fp32": 0, "bf16": 1.0}}',
        "\udcff",
    ],
)
def test_a_damaged_cache_is_measured_anew(timed: list[str], content: str) -> None:
    probe()
    key = next(iter(json.loads(cache_file().read_text(encoding="utf-8"))))
    timed.clear()
    text = content.replace('"KEY"', json.dumps(key))
    cache_file().write_bytes(text.encode("utf-8", errors="surrogateescape"))
    assert probe() == probe() == FIRST


def test_other_machines_measurements_stay(timed: list[str]) -> None:
    cache_file().parent.mkdir(parents=True)
    other = {"another processor": {"fp32": 9.0, "bf16": 8.0}}
    cache_file().write_text(json.dumps({**other, "damaged": {}}), encoding="utf-8")
    probe()
    left = json.loads(cache_file().read_text(encoding="utf-8"))
    assert left["another processor"] == other["another processor"]
    assert "damaged" not in left and len(left) == 2


def test_a_folder_that_cannot_be_written_is_no_hindrance(
    timed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    assert probe() == FIRST
    assert probe() != FIRST, "measured again, for want of a memory"


def test_where_it_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path))
    assert cache_file() == tmp_path / "probe.json"
    monkeypatch.delenv("THRESHER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_file() == tmp_path / "caches" / "thresher" / "probe.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_file() == tmp_path / ".cache" / "thresher" / "probe.json"

    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_file().name == "probe.json"


def test_the_real_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path))
    assert {"fp32", "bf16"} <= set(found := probe()) and all(ms > 0 for ms in found.values())
    assert probe() == found


def test_arithmetic_that_does_not_work_here_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.errors import ConfigError

    def refuse() -> None:
        raise ConfigError("saturates")

    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "check_int8", refuse)
    assert set(probe()) == {"fp32", "bf16"}
