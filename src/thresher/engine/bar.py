"""A progress bar over results, for whoever asks for one."""

from collections.abc import Callable, Iterator
from typing import Any


def with_bar(found: Iterator[Any], *, total: int | None, of: Callable[[Any], int] = lambda one: 1) -> Iterator[Any]:
    """The same results, counted in a progress bar, each as many as `of` says; it goes away when they end, or when the
    caller stops early."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("texts", total=total)
        for one in found:
            bars.advance(bar, of(one))
            yield one
