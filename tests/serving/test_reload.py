"""Runs are loaded anew while others ask: nobody is dropped, and one that does not load harms no other."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.serving.conftest import served, setting
from tests.serving.test_faults import GOOD, LONG, until
from thresher.serving.house import House
from thresher.serving.http.routes import own
from thresher.serving.http.server import Server
from thresher.serving.queue import Limits


def test_who_asks_twice_is_answered_by_the_run_that_began(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, explained = threading.Event(), threading.Event(), own._explained

    def slow(*given: Any) -> Any:
        began.set()
        assert go.wait(LONG)
        return explained(*given)

    monkeypatch.setattr(own, "_explained", slow)
    house = House([setting(runs, "classes", limits=Limits(timeout_s=LONG))])
    with served(house) as client, ThreadPoolExecutor(2) as pool:
        old = house.runs["classes"]
        asked = pool.submit(client.post, "/explain", {"text": GOOD["inputs"], "dials": [0, 1]})
        assert began.wait(LONG)
        loaded = pool.submit(asyncio.run, house.reload())
        assert until(lambda: house.runs["classes"] is not old)
        time.sleep(0.2)
        assert not old.queue.closed
        go.set()
        assert asked.result().status == 200
        loaded.result()
        assert old.queue.closed and not old.calls and house.reloads == {"good": 1, "failed": 0}


def test_who_says_so_while_runs_are_loaded_is_heard() -> None:
    """Files may have been replaced since they were read."""

    class Slow:
        loaded = 0

        async def reload(self) -> None:
            await asyncio.sleep(0.1)
            self.loaded += 1

    async def tell(house: Any) -> None:
        server = Server(uvicorn.Config("no:app"), house, unready_s=0, gone_s=1000)
        for _ in range(3):
            server._reload()
            await asyncio.sleep(0.01)
        assert server._reloading is not None
        await server._reloading
        assert house.loaded == 2
        server._reload()
        await server._reloading
        assert house.loaded == 3

    asyncio.run(tell(Slow()))


class PanicException(BaseException):
    """As Rust's panics reach Python."""


@pytest.mark.parametrize("error", [Exception("data did not match any variant"), PanicException("index out of bounds")])
def test_whatever_a_library_says_of_a_file_the_old_run_stays(
    runs: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    house = House([setting(runs, name) for name in ("classes", "labels")])
    load, before = house._load, dict(house.runs)

    def loads(given: Any, **more: Any) -> Any:
        if given.name == "classes":
            raise error
        return load(given, **more)

    monkeypatch.setattr(house, "_load", loads)
    with served(house) as client:
        asyncio.run(house.reload())
        assert house.reloads == {"good": 1, "failed": 1}
        assert house.runs["classes"] is before["classes"] and house.runs["labels"] is not before["labels"]
        for name in before:
            assert client.post(f"/run/{name}/predict", GOOD).status == 200
