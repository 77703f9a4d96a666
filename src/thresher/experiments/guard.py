"""A call that measures has its work folder to itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
