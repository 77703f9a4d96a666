"""benchmarks/gpu/steady.py: what is made of nvidia-smi's readings, and of calls with pauses."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import measuring
import pytest


def steady() -> Any:
    sys.path.insert(0, str(measuring.HERE / "gpu"))
    return importlib.import_module("steady")


def test_readings_become_medians_and_reasons() -> None:
    lines = [
        ["1980", "1980", "300.5", "700.0", "0x0000000000000000"],
        ["1500", "1980", "700.0", "700.0", "0x0000000000000004"],
        ["1600", "1980", "699.0", "700.0", "0x0000000000000004"],
    ]
    found = steady().summary_of(lines)
    assert found["sm_mhz"] == 1600 and found["watts"] == 699 and found["most_sm_mhz"] == 1980 and found["readings"] == 3
    assert found["reasons"] == ["0x0000000000000000", "0x0000000000000004"]


def test_calls_are_timed_after_a_warm_up_and_at_least_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only calls and pauses move: a busy machine has nothing to say here."""
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=wait)
    monkeypatch.setattr(steady(), "time", clock)
    calls: list[float] = []

    def work() -> None:
        calls.append(now[0])
        wait(0.002)

    assert steady().timed(work, seconds=0.0, pause=0.0) == [pytest.approx(2.0)]
    calls.clear()
    times = steady().timed(work, seconds=0.05, pause=0.01)
    assert times == [pytest.approx(2.0)] * 4 and len(calls) == 9, "the first five warm up"
