"""Told to end, by a person's Ctrl-C or by a container's or scheduler's SIGTERM: both are one thing."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptions(*, at_once: bool) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM are both a KeyboardInterrupt: at once, or only the second one.

    The first is then noted, and what this gives tells of it. Threads need that: an exception between any two
    instructions leaves the locks of a pool in disorder.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if at_once or noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # a shell's background jobs
    heard = heard if threading.current_thread() is threading.main_thread() else []  # others cannot set handlers
    for number in heard:
        signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        for number in heard:
            signal.signal(number, before[number])
