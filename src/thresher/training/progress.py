"""Progress of long work: a bar with the numbers that matter, or silence."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 60.0


class Silent:
    """Shows nothing; the base of what shows something."""

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        """A stage starts, `done` of its `total` steps already behind it."""

    def step(self, **numbers: float | None) -> None:
        """One step is done; numbers replace the ones shown before, None leaves the old one."""

    def note(self, text: str) -> None:
        """A line worth keeping on the screen."""

    def anew(self) -> "Silent":
        """Another one for the same screen: a search shows every trial with one of its own."""
        return self

    def brief(self) -> "Silent":
        """For work of seconds, which leaves nothing on the screen."""
        return Silent()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class Bars(Silent):
    """A rich progress bar per stage, with loss, relative FLOPs and the selection metric.

    Where there is no terminal to draw on (a log file, a pipe), every tenth of a stage is a line instead, and every
    minute of a long one.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console or Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._numbers: dict[str, float] = {}
        self._said = time.monotonic()

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        self._finish()
        self._numbers, self._said = {}, time.monotonic()
        self._task = self._progress.add_task(name, total=total, completed=done, numbers="")

    def step(self, **numbers: float | None) -> None:
        if self._task is None:
            return
        self._numbers.update({name: value for name, value in numbers.items() if value is not None})
        shown = "  ".join(f"{name} {value:.3f}" for name, value in self._numbers.items())
        self._progress.update(self._task, advance=1, numbers=shown)
        task = self._progress.tasks[self._task]
        done, total = int(task.completed), int(task.total or 1)
        due = done * 10 // total > (done - 1) * 10 // total or time.monotonic() - self._said > LINE_SECONDS
        if due and not self._progress.console.is_terminal:
            self._progress.console.print(f"{task.description} {done}/{total}  {shown}")
            self._numbers.pop("metric", None)  # a line has only what was measured since the last one
            self._said = time.monotonic()

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False)

    def anew(self) -> "Bars":
        return Bars(self._progress.console)

    def brief(self) -> "Brief":
        return Brief(self._progress.console)

    def __enter__(self) -> Self:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        if self._progress.console.is_terminal:
            self._progress.stop()

    def _finish(self) -> None:
        """A stage may need fewer steps than announced; its clock stops when the next one begins."""
        if self._task is not None:
            self._progress.update(self._task, total=self._progress.tasks[self._task].completed)
            self._progress.stop_task(self._task)


class Brief(Silent):
    """A plain bar per stage, which goes when the work is done. Where there is no terminal, nothing is shown."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(console=console, transient=True)
        self._task: TaskID | None = None

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        self._task = self._progress.add_task(name, total=total, completed=done)

    def step(self, **numbers: float | None) -> None:
        if self._task is not None:
            self._progress.advance(self._task)

    def __enter__(self) -> Self:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress.console.is_terminal:
            self._progress.stop()


def steps_of(bars: Silent, name: str) -> Callable[[int, int], None]:
    """Steps of a bar of its own, for one who tells how much is done."""
    seen = 0

    def advance(done: int, total: int) -> None:
        nonlocal seen
        if seen == 0:
            bars.begin(name, total=total)
        for _ in range(done - seen):
            bars.step()
        seen = done

    return advance
