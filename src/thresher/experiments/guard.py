"""A call that measures has its work folder to itself, and ends what it started when it is told to end."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from thresher.errors import RunError

LOCK = ".lock"


@contextmanager
def alone_in(work: Path) -> Iterator[None]:
    """Refuse a second call in this work folder: both would train the same runs.

    The system lets go of the lock when the process ends, however it does.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write in {work}: {error.strerror}; give another --work") from error
    with file:
        if sys.platform != "win32":  # which has no such locks
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(
                    f"{work} is in use by another `thresher reproduce`; wait until it ends, or give another --work"
                ) from error
            except OSError:  # nor have some network file systems
                pass
        yield


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
    for number in heard:
        signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        for number in heard:
            signal.signal(number, before[number])
