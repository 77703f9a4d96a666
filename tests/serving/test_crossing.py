"""Many requests that come at once wake the engine once, and many answers the loop."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from thresher.serving.crossing import Crossing
from thresher.serving.memory import keep_what_stays


def test_one_word_for_all_that_came_and_one_for_all_that_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []

    async def ask() -> int:
        loop = asyncio.get_running_loop()
        told: list[Any] = []
        tell = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda act: (told.append(act), tell(act)))
        crossing = Crossing(loop, lambda: woken.append(1))
        futures = [loop.create_future() for _ in range(50)]
        for _ in futures:
            crossing.came()
        await asyncio.sleep(0)
        assert woken == [1]
        crossing.came()
        await asyncio.sleep(0)
        assert woken == [1, 1], "what comes later is told, too"

        futures[7].cancel()

        def land() -> None:
            for future in futures:
                crossing.land(future)

        thread = threading.Thread(target=land)
        thread.start()
        thread.join()  # the loop stands still meanwhile: all of them land before it hears of the first
        await asyncio.gather(*futures, return_exceptions=True)
        assert all(future.done() for future in futures)
        return len(told)

    assert asyncio.run(ask()) == 1


def test_none_is_lost_however_threads_and_loop_take_turns() -> None:
    async def ask() -> None:
        loop = asyncio.get_running_loop()
        crossing = Crossing(loop, lambda: None)
        for _ in range(200):
            futures = [loop.create_future() for _ in range(20)]
            threads = [
                threading.Thread(target=lambda part=part: [*map(crossing.land, part)])
                for part in (futures[:10], futures[10:])
            ]
            for thread in threads:
                thread.start()
            await asyncio.wait_for(asyncio.gather(*futures), 10)
            for thread in threads:
                thread.join()

    asyncio.run(ask())


def test_what_stays_is_out_of_the_collectors_sight() -> None:
    class Thing:
        pass

    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    try:
        keep_what_stays()
        assert gc.get_freeze_count() > 10_000
        assert not any(one is thing for one in gc.get_objects())
    finally:
        gc.unfreeze()
    assert any(one is thing for one in gc.get_objects())
