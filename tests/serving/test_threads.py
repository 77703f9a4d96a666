"""Threads that computed once are gone: the engine's is the only one that OpenMP keeps helpers for."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import served, setting
from tests.serving.test_faults import until
from thresher.serving.house import House
from thresher.serving.run import ServedRun
from thresher.serving.threads import await_in_passing, in_passing


def passing() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("passing")]


def test_work_is_done_elsewhere_and_its_errors_come_back() -> None:
    def fails() -> None:
        raise ValueError("no such file")

    assert in_passing(threading.current_thread) is not threading.main_thread() and not passing()
    assert asyncio.run(await_in_passing(lambda: 3)) == 3
    for call in (lambda: in_passing(fails), lambda: asyncio.run(await_in_passing(fails))):
        with pytest.raises(ValueError, match="no such file"):
            call()
    assert until(lambda: not passing())


def test_nothing_is_left_of_loading_explaining_and_reloading(runs: Path) -> None:
    loaders: list[threading.Thread] = []

    def load(*given: Any, **more: Any) -> ServedRun:
        loaders.append(threading.current_thread())
        return ServedRun.load(*given, **more)

    with served(House([setting(runs, "classes")], load=load)) as client:
        assert client.post("/explain", {"text": "the film is good", "dials": [0, 1]}).status == 200
        asyncio.run(client.house.reload())
        assert client.post("/predict", {"inputs": "the film is good"}).status == 200
        assert len(loaders) == 2 and threading.main_thread() not in loaders
        assert until(lambda: not passing() and not any(thread.is_alive() for thread in loaders))
