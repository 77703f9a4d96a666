"""Between an event loop and an engine's thread: one word for all that came at once.

A word for every request would cost more than the rest of its way: it wakes a thread, and both want the interpreter
then. So the engine hears of new texts when the loop has read all that clients sent, and the loop of a batch's answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Crossing:
    """Of one loop. `wake`: what tells the engine's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.loop, self._wake = loop, wake
        self._landed: deque[asyncio.Future[None]] = deque()
        self._waking = self._landing = False

    def came(self) -> None:
        """In the loop's thread: there is something for the engine."""
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self._tell)

    def land(self, future: "asyncio.Future[None]") -> None:
        """In any thread: a future of the loop is over."""
        self._landed.append(future)
        if not self._landing:  # or else `_settle` has not begun, and finds this one, too
            self._landing = True
            self.loop.call_soon_threadsafe(self._settle)

    def _tell(self) -> None:
        self._waking = False
        self._wake()

    def _settle(self) -> None:
        self._landing = False
        while self._landed:
            future = self._landed.popleft()
            if not future.done():
                future.set_result(None)
