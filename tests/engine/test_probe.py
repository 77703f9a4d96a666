"""The timed probe: measured once, remembered for this processor, torch and number of threads, and never in the way."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thresher.engine import probe as module
from thresher.engine.probe import cache_file, probe


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
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An empty cache, and a machine to measure."""
    found = Machine()
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_product", lambda dtype: dtype)
    monkeypatch.setattr(module, "_milliseconds", found.time)
    monkeypatch.setattr(module, "_works", lambda dtype: True)
    monkeypatch.setattr(module, "nanoseconds_waited", lambda: found.waited)
    return found


def remembered() -> dict[str, float]:
    (times,) = json.loads(cache_file().read_text(encoding="utf-8")).values()
    return dict(times)


def remember(times: dict[str, float]) -> None:
    """As an earlier measurement would have."""
    cache_file().parent.mkdir(parents=True, exist_ok=True)
    cache_file().write_text(json.dumps({module._key(): times}), encoding="utf-8")


TRUE = {"fp32": 3.0, "bf16": 2.0, "int8": 1.0}
WRONG = {"fp32": 4.0, "bf16": 5.0, "int8": 6.0}  # as a busy machine may have it


def test_what_is_remembered_is_not_measured_again(machine: Machine) -> None:
    assert probe() == TRUE and remembered() == TRUE
    machine.timed.clear()
    assert probe() == TRUE
    assert len(machine.timed) == 3 * module.FEW_ROUNDS, "one look whether the machine is still the same"


def test_they_take_turns(machine: Machine) -> None:
    probe()
    assert machine.timed == ["fp32", "bf16", "int8"] * module.LEAST_ROUNDS


def test_a_wrong_order_does_not_stick(machine: Machine) -> None:
    """No time is far from what is remembered; it is the order that is wrong."""
    remember(WRONG)
    machine.milliseconds = {"fp32": 4.0, "bf16": 3.0, "int8": 3.1}
    assert probe() == remembered() == machine.milliseconds


def test_what_a_busy_machine_measured_is_not_believed(machine: Machine) -> None:
    """A remembered time that can be halved; one that is now slower is believed, as the machine may be busy now."""
    busy = {"fp32": 16.0, "bf16": 15.0, "int8": 14.0}
    remember(busy)
    machine.milliseconds = {"fp32": 10.0, "bf16": 9.0, "int8": 8.0}
    assert probe() == busy
    machine.milliseconds = {"fp32": 9.0, "bf16": 7.0, "int8": 8.0}
    assert probe() == remembered() == machine.milliseconds
    machine.milliseconds = {"fp32": 90.0, "bf16": 70.0, "int8": 80.0}
    assert probe() == remembered() == {"fp32": 9.0, "bf16": 7.0, "int8": 8.0}


def test_what_is_interrupted_does_not_count(machine: Machine) -> None:
    """bf16 is disturbed nine times of ten, and would lose."""
    machine.disturb = lambda dtype: 5.0 if dtype == "bf16" and machine.timed.count("bf16") % 10 else 0.0
    assert probe() == remembered() == TRUE
    assert module.LEAST_ROUNDS < machine.timed.count("bf16") < module.MOST_ROUNDS, "until enough were undisturbed"


def test_a_machine_that_is_too_busy_is_not_remembered(machine: Machine) -> None:
    """What is left to go by is a processor's time in one thread."""
    machine.disturb = lambda dtype: 9.0 if dtype != "fp32" else 1.0
    threads = torch.get_num_threads()
    assert probe() == {"fp32": 30.0, "bf16": 20.0, "int8": 10.0}
    assert not cache_file().exists() and torch.get_num_threads() == threads


def test_a_machine_that_is_too_busy_changes_no_choice(machine: Machine) -> None:
    remember(TRUE)
    machine.disturb = lambda dtype: 9.0 if dtype != "fp32" else 1.0
    assert probe() == remembered() == TRUE
    assert len(machine.timed) > 3 * module.MOST_ROUNDS, "although a look contradicted it"


def test_a_moment_of_noise_is_looked_at_again(machine: Machine) -> None:
    remember(TRUE)
    machine.disturb = lambda dtype: 9.0 if dtype == "int8" and len(machine.timed) < 20 else 0.0
    assert probe() == TRUE
    assert len(machine.timed) == 3 * 2 * module.FEW_ROUNDS


def test_times_that_do_not_repeat_are_measured_longer(machine: Machine) -> None:
    machine.waited = 0
    real = machine.time
    falling = iter(range(1000, 0, -1))
    machine.time = lambda dtype, clock: next(falling) if clock is time.perf_counter else real(dtype, clock)  # type: ignore[assignment, return-value]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_milliseconds", machine.time)
        patch.setattr(module, "NEAR", 1.0)
        probe()
    assert not cache_file().exists()


def test_where_nobody_tells_who_waited_it_takes_longer(machine: Machine) -> None:
    machine.waited = None
    assert probe() == remembered() == TRUE
    assert machine.timed.count("bf16") == module.BLIND_ROUNDS


def test_hopeless_arithmetic_gets_few_turns(machine: Machine) -> None:
    """Without hardware for it, bf16 takes a hundred times as long."""
    machine.milliseconds["bf16"] = 400.0
    assert probe()["bf16"] == 400.0
    assert machine.timed.count("bf16") == module.AGAIN
    machine.timed.clear()
    probe()
    assert "bf16" not in machine.timed, "nor is it looked at again"


def test_fresh_measures_again_and_is_remembered(machine: Machine) -> None:
    probe()
    machine.milliseconds["bf16"] = 1.9
    assert probe() == TRUE
    assert probe(cached=False) == probe() == remembered() == {**TRUE, "bf16": 1.9}


def test_another_number_of_threads_is_another_measurement(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    probe()
    machine.milliseconds["bf16"] = 1.9
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert probe()["bf16"] == 1.9


def test_threads_that_wait_are_counted() -> None:
    before, after = module.nanoseconds_waited(), module.nanoseconds_waited()
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert 0 <= before <= after


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
def test_a_damaged_cache_is_measured_anew(machine: Machine, content: str) -> None:
    probe()
    key = next(iter(json.loads(cache_file().read_text(encoding="utf-8"))))
    text = content.replace('"KEY"', json.dumps(key))
    cache_file().write_bytes(text.encode("utf-8", errors="surrogateescape"))
    assert probe() == probe() == remembered() == TRUE


def test_other_machines_measurements_stay(machine: Machine) -> None:
    cache_file().parent.mkdir(parents=True)
    other = {"another processor": {"fp32": 9.0, "bf16": 8.0}}
    cache_file().write_text(json.dumps({**other, "damaged": {}}), encoding="utf-8")
    probe()
    left = json.loads(cache_file().read_text(encoding="utf-8"))
    assert left["another processor"] == other["another processor"]
    assert "damaged" not in left and len(left) == 2


def test_a_folder_that_cannot_be_written_is_no_hindrance(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    assert probe() == TRUE
    machine.milliseconds["bf16"] = 1.9
    assert probe()["bf16"] == 1.9, "measured again, for want of a memory"


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
    for _ in range(2):  # measured, and then remembered if the machine was not too busy to tell
        assert {"fp32", "bf16"} <= set(found := probe()) and all(ms > 0 for ms in found.values())
    assert set(module._of_one_thread(["fp32", "bf16"])) == {"fp32", "bf16"}


def test_arithmetic_that_does_not_work_here_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.errors import ConfigError

    def refuse() -> None:
        raise ConfigError("saturates")

    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "check_int8", refuse)
    assert set(probe()) == {"fp32", "bf16"}
