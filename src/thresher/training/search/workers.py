"""Where trials run: in this process, or several at a time in processes of their own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

import torch


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
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,))
