"""Where trials run: in this process, or several at a time in processes of their own."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import torch

from thresher.processes import FreshProcesses


class Inline(Executor):
    """Runs what it is given at once, in this process."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(work(*args, **options))
        return done


def executor_of(workers: int) -> Executor:
    if workers == 1:
        return Inline()
    threads = max(1, torch.get_num_threads() // workers)  # the cores are shared
    return FreshProcesses(workers, initializer=torch.set_num_threads, initargs=(threads,))
