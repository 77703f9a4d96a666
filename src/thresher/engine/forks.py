"""Engines in forked processes: a child has the memory of its parent and none of its threads.

Worker processes are often forked after the model is loaded, so that they share its memory (gunicorn --preload,
multiprocessing's fork). torch would wait in such a child for ever for the threads that computed in the parent.
"""

import os
import threading
from functools import cache
from weakref import WeakSet

import torch

from thresher.errors import ModelError


class OneAtATime:
    """A lock that is open in a forked child, whoever held it in the parent: that thread is not there to let go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


_locks: WeakSet[OneAtATime] = WeakSet()


def _begin_child() -> None:
    torch.set_num_threads(1)
    for one in _locks:
        one.lock = threading.Lock()


@cache  # once for a process
def expect_forks() -> None:
    """From now on, forked children of this process compute with one thread of their own."""
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=_begin_child)


def check_process(loaded_in: int, device: str) -> None:
    """Refuse an engine on a GPU in another process than the one, `loaded_in`, that it was loaded in."""
    if device != "cpu" and os.getpid() != loaded_in:
        raise ModelError(
            f"the engine on {device} was loaded before this process was forked, and a GPU's state does not survive "
            "that; load the engine after the fork"
        )


def check_stream(begun_in: int) -> None:
    """Refuse to go on with a stream that the parent began: its next texts are with a thread that is not here."""
    if os.getpid() != begun_in:
        raise ModelError("the stream was begun before this process was forked; begin it anew in this one")
