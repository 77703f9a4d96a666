"""thresher doctor: what the engine would choose and why, and what a measurement says of it."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.cli import tiny
from thresher.cli.doctor import EXTRAS
from thresher.engine import arithmetic

TIMES = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}
SETS = {"avx512_bf16": True, "avx512_vnni": True}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is measured, on a processor with bf16 and int8 in hardware."""
    times = dict(TIMES)
    monkeypatch.setattr("thresher.engine.probe.measure", lambda: (times, True))
    monkeypatch.setattr(arithmetic, "features", lambda: SETS)
    monkeypatch.setattr(arithmetic, "int8_works", lambda: True)
    monkeypatch.setattr("thresher.engine.choose.gpu_problem", lambda dtype="auto": "no GPU in this test")
    return times


def test_json_has_the_choice_and_the_measurement(timed: dict[str, float]) -> None:
    found = tiny.succeeds("doctor --json").json()
    assert found["probe"] == {"milliseconds": TIMES, "threads": 1, "certain": True, "advice": None}
    assert found["engine"]["dtype"] == "bf16" and "measured with AVX512_BF16" in found["engine"]["why"]
    assert found["engine_quantized"]["dtype"] == "int8-static" and "fastest" in found["engine_quantized"]["why"]


def test_table(timed: dict[str, float]) -> None:
    said = " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())
    assert "fp32 3.00 ms, bf16 2.00 ms, int8 1.00 ms (threads: 1); they decide nothing" in said
    assert "bf16: by the processor's instruction sets" in said
    assert "int8-static: the run is quantized" in said and "advice" not in said


def test_a_measurement_advises_and_changes_nothing(timed: dict[str, float]) -> None:
    timed["bf16"] = 9.0
    found = tiny.succeeds("doctor --json").json()
    assert found["engine"]["dtype"] == "bf16" and "load engines with dtype='fp32'" in found["probe"]["advice"]
    said = " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())
    assert "fp32 took 3.00 ms here and bf16 9.00 ms" in said


def test_a_machine_too_busy_to_measure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.engine.probe.measure", lambda: (TIMES, False))
    assert "too busy to be sure" in " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())


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


def test_extras_are_listed_with_what_they_are_for(timed: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("nncf", "openvino") else object())
    found = tiny.succeeds("doctor --json").json()["packages"]
    assert set(found) == set(EXTRAS)
    assert found["search"] == "for thresher search and thresher prune --max-drop: installed"
    said = 'for the rivals in thresher bench: missing openvino, nncf; run: pip install "thresher[bench]"'
    assert found["bench"] == said
    assert f"bench, {said}" in " ".join(tiny.succeeds("doctor").out.replace("│", " ").split())


def test_one_core_is_one_core(timed: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher import hardware

    summary = hardware.summary()
    for cores, words in ((1, "Chip, 1 core │"), (2, "Chip, 2 cores │")):
        monkeypatch.setattr(hardware, "summary", lambda cores=cores: {**summary, "cpu": "Chip", "cores": cores})
        assert words in " ".join(tiny.succeeds("doctor").out.split())


def test_families_say_what_is_supported_where() -> None:
    rows = tiny.succeeds("doctor --families --json").json()
    by_type = {name: row for row in rows for name in row["model_types"]}
    assert not any(by_type["roberta"]["missing"].values())
    modern = by_type["modernbert"]
    assert modern["features"] == ["attention windows", "gated feed-forward", "pre-norm", "rotary positions"]
    assert modern["missing"]["reference"] == modern["missing"]["cpu"] == []
    deberta = by_type["deberta-v2"]["missing"]
    assert deberta["export"] == deberta["cuda"] == modern["missing"]["cuda"] == []
    assert deberta["unpadded rival"] == ["convolution", "disentangled positions"]
    said = " ".join(tiny.succeeds("doctor --families").out.split())
    assert "modernbert: attention windows, gated feed-forward, pre-norm, rotary positions" in said
