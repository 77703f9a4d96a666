"""What `thresher doctor` measures: products that take turns, undisturbed ones only, repeated or uncertain."""

import time
from collections.abc import Callable

import pytest
import torch

from thresher.engine import probe as module
from thresher.engine.probe import measure


class Machine:
    """Products that take as long as a test says, and threads that wait as it says; what was timed is in `timed`."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}
        self.timed: list[str] = []
        self.waited: int | None = 0
        self.disturb: Callable[[str], float] = lambda dtype: 0.0  # milliseconds that the product has to wait

    def time(self, dtype: str, clock: object) -> float:
        self.timed.append(dtype)
        if clock is time.thread_time:
            return 10 * self.milliseconds[dtype]
        waited = self.disturb(dtype)
        if self.waited is not None:
            self.waited += round(waited * 1e6)
        return self.milliseconds[dtype] + waited


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(module, "_product", lambda dtype: dtype)
    monkeypatch.setattr(module, "_milliseconds", found.time)
    monkeypatch.setattr(module, "int8_works", lambda: True)
    monkeypatch.setattr(module, "nanoseconds_waited", lambda: found.waited)
    return found


TRUE = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}


def test_they_take_turns(machine: Machine) -> None:
    assert measure() == (TRUE, True)
    assert machine.timed == ["fp32", "bf16", "int8"] * module.LEAST_ROUNDS


def test_what_is_interrupted_does_not_count(machine: Machine) -> None:
    """bf16 is disturbed nine times of ten, and would lose."""
    machine.disturb = lambda dtype: 5.0 if dtype == "bf16" and machine.timed.count("bf16") % 10 else 0.0
    assert measure() == (TRUE, True)
    assert module.LEAST_ROUNDS < machine.timed.count("bf16") < module.MOST_ROUNDS, "until enough were undisturbed"


def test_a_machine_that_is_too_busy_says_so(machine: Machine) -> None:
    """What is left to go by is a processor's time in one thread."""
    machine.disturb = lambda dtype: 9.0 if dtype != "fp32" else 1.0
    threads = torch.get_num_threads()
    assert measure() == ({"fp32": 30.0, "bf16": 20.0, "int8": 10.0}, False)
    assert torch.get_num_threads() == threads


def test_where_nobody_tells_who_waited_it_takes_longer(machine: Machine) -> None:
    machine.waited = None
    assert measure() == (TRUE, True)
    assert machine.timed.count("bf16") == module.BLIND_ROUNDS


def test_hopeless_arithmetic_gets_few_turns(machine: Machine) -> None:
    """Without hardware for it, bf16 takes a hundred times as long."""
    machine.milliseconds["bf16"] = 400.0
    assert measure()[0]["bf16"] == 400.0
    assert machine.timed.count("bf16") == module.AGAIN


def test_threads_that_wait_are_counted() -> None:
    before, after = module.nanoseconds_waited(), module.nanoseconds_waited()
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert 0 <= before <= after


def test_the_real_measurement() -> None:
    found, _ = measure()
    assert {"fp32", "bf16"} <= set(found) and all(ms > 0 for ms in found.values())


def test_arithmetic_that_does_not_work_here_is_left_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "int8_works", lambda: False)
    assert set(measure()[0]) == {"fp32", "bf16"}
