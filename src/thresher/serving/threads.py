"""Threads that end when their work is done.

Whichever thread computes with torch on a processor gets a team of OpenMP's helpers, for as long as it lives. Where
there are more of them than cores, GNU's OpenMP lets all of them sleep between two products instead of waiting for the
next, and waking them takes long: an engine's thread lost nearly half of its pace because the thread that had loaded the
model was still there.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_passing(work: Callable[[], T]) -> T:
    """Done in a thread of its own, which is gone afterwards."""
    with ThreadPoolExecutor(1, thread_name_prefix="passing") as thread:
        return thread.submit(work).result()


async def await_in_passing(work: Callable[[], T]) -> T:
    """The same, while the event loop goes on."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="passing")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
