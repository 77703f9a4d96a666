"""Our own words say what matters; the libraries' load reports and progress bars would bury them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

# What processes that a job starts are told; in this one transformers is already imported.
FOR_CHILDREN = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def quiet_libraries() -> None:
    """For the rest of the process, and in processes that it starts."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves both untyped
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, value in FOR_CHILDREN.items():
        os.environ.setdefault(name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """For the time of a job, here and in processes that it starts; the caller's own settings come back.

    They are the process's: the first of several threads in here notes them, and the last one out brings them back.
    """
    with _SHARED.lock:
        if _SHARED.inside == 0:
            _SHARED.restore = _as_it_was()
            quiet_libraries()
        _SHARED.inside += 1
    try:
        yield
    finally:
        with _SHARED.lock:
            _SHARED.inside -= 1
            if _SHARED.inside == 0:
                _SHARED.restore()


def _as_it_was() -> Callable[[], None]:
    """What brings back the settings of this moment."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    told = {name: os.environ.get(name) for name in FOR_CHILDREN}

    def restore() -> None:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        for name, value in told.items():
            if value is None:
                os.environ.pop(name, None)

    return restore


class _Shared:
    """Who is inside, of all threads of this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.restore: Callable[[], None] = lambda: None


_SHARED = _Shared()
