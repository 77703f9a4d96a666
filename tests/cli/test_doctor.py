"""thresher doctor: the timed probe, where it is remembered, and what the engine would choose by it."""

import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.cli import tiny
from thresher.cli.doctor import EXTRAS
from thresher.engine import probe as module


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    times = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}

    def milliseconds(dtype: str, clock: object) -> float:
        found.append(dtype)
        return times[dtype]

    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_product", lambda dtype: dtype)
    monkeypatch.setattr(module, "_milliseconds", milliseconds)
    monkeypatch.setattr(module, "nanoseconds_waited", lambda: 0)  # nobody did
    monkeypatch.setattr(module, "_works", lambda dtype: True)
    monkeypatch.setattr("thresher.engine.choose.gpu_problem", lambda: "no GPU in this test")
    return found


def test_json_has_the_probe_and_the_choice(timed: list[str], tmp_path: Path) -> None:
    found = tiny.succeeds("doctor --json").json()
    assert found["probe"]["milliseconds"] == {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}
    assert found["probe"]["threads"] == 1
    assert Path(found["probe"]["cache"]) == tmp_path / "probe.json"
    assert found["engine"]["dtype"] == "bf16" and "timed probe" in found["engine"]["why"]
    assert found["engine_quantized"]["dtype"] == "int8-static" and "fastest" in found["engine_quantized"]["why"]
    assert json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))


def test_table(timed: list[str], tmp_path: Path) -> None:
    said = " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())
    assert "fp32 3.00 ms, bf16 2.00 ms, int8 1.00 ms (threads: 1)" in said
    assert "bf16: the faster of fp32 and bf16" in said
    assert "int8-static: the run is quantized" in said
    assert tmp_path.name in said.replace(" ", "")


def test_a_long_path_is_not_cut(timed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 30)
    monkeypatch.setenv("THRESHER_CACHE", str(folder))
    said = tiny.succeeds("doctor").out.replace("│", " ")
    assert "long" * 30 in "".join(said.split()) and "…" not in said


def test_fresh_measures_anew(timed: list[str]) -> None:
    counts = []
    for command in ("doctor", "doctor", "doctor --fresh"):
        timed.clear()
        tiny.succeeds(command)
        counts.append(timed.count("bf16"))
    measured, looked, anew = counts
    assert measured > looked
    assert anew >= measured, "and not only looked at, as other parts of the command do"


def test_a_cache_that_cannot_be_written_is_said(
    timed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    assert tiny.succeeds("doctor --json").json()["probe"]["cache"] is None
    assert "cannot be written" in " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())


def test_every_time_is_shown_once_and_is_the_one_that_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is remembered, every look at the clock gives another time."""
    clock = itertools.count(1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(module, "_product", lambda dtype: dtype)
    monkeypatch.setattr(module, "_milliseconds", lambda product, watch: float(next(clock)))
    monkeypatch.setattr(module, "_works", lambda dtype: True)
    monkeypatch.setattr("thresher.engine.choose.gpu_problem", lambda: "no GPU in this test")
    said = " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())
    assert len(re.findall(r"fp32 [\d.]+ ms", said)) == 1
    found = tiny.succeeds("doctor --json").json()
    measured = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["probe"]["milliseconds"].items())
    assert measured in found["engine"]["why"] and measured in found["engine_quantized"]["why"]


# --- optional parts --------------------------------------------------------------------------------------------------

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_of_a_command_is_known() -> None:
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    brought = {
        extra: {re.split("[<>=]", package)[0].replace("-", "_") for package in packages}
        for extra, packages in extras.items()
        if extra != "dev"
    }
    assert {extra: set(modules) for extra, (_, modules) in EXTRAS.items()} == brought


def test_extras_are_listed_with_what_they_are_for(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("nncf", "openvino") else object())
    found = tiny.succeeds("doctor --json").json()["packages"]
    assert set(found) == set(EXTRAS)
    assert found["search"] == "for thresher search and thresher prune --max-drop: installed"
    said = 'for the rivals in thresher bench: missing openvino, nncf; run: pip install "thresher[bench]"'
    assert found["bench"] == said
    assert f"bench, {said}" in " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())


def test_one_core_is_one_core(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher import hardware

    summary = hardware.summary()
    for cores, words in ((1, "Chip, 1 core │"), (2, "Chip, 2 cores │")):
        monkeypatch.setattr(hardware, "summary", lambda cores=cores: {**summary, "cpu": "Chip", "cores": cores})
        assert words in " ".join(tiny.succeeds("doctor").out.split())
