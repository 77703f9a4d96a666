"""Fresh Python processes for a part of the work, from any script that calls thresher."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

_HIDING = threading.Lock()


class FreshProcesses(ProcessPoolExecutor):
    """At most `count` processes that share nothing with this one. They call functions of modules, and never load the
    caller's script, as `multiprocessing` would: one without `if __name__ == "__main__"` would begin again in each."""

    def __init__(self, count: int, *, initializer: Callable[..., object], initargs: tuple[Any, ...] = ()) -> None:
        super().__init__(count, mp_context=get_context("spawn"), initializer=initializer, initargs=initargs)

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        with _without_script():  # it is here that processes start
            return super().submit(work, *args, **options)


@contextmanager
def _without_script() -> Iterator[None]:
    """For a moment nobody can tell from which file this process was started."""
    main = sys.modules["__main__"]
    with _HIDING:
        before: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        vars(main).pop("__file__", None)
        main.__spec__ = None
        try:
            yield
        finally:
            vars(main).update(before)
