"""thresher reproduce all: the rows that any experiment lacks, in one call, and a table of how far each has come."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.cli.reproduce import NO_PLACES, reason_of
from thresher.errors import ConfigError, RunError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from thresher.experiments.everything import Trouble
    from thresher.experiments.experiment import Key, Setting
    from thresher.experiments.runner import Part, Progress


def reproduce_all(
    folder: Path,
    setting: "Setting",
    *,
    parallel: int,
    only: dict[str, list[str]],
    keep: bool,
    draw: bool,
    screen: "Console",
) -> None:
    """Measure first, unless only tables and figures are wanted; those are made when all rows are there."""
    from rich.markup import escape

    from thresher.experiments.everything import parts_of, publish_all
    from thresher.experiments.guard import alone_in
    from thresher.hardware import choose_device

    troubled: list[str] = []

    def trouble(name: str, error: Exception) -> None:
        troubled.append(name)
        screen.print(escape(f"{name}: {reason_of(error)}"), soft_wrap=True)

    device, progress = choose_device()[0], list["Progress"]()
    if draw:
        parts = parts_of(folder, setting, only=only, device=device, on_trouble=trouble)
    else:
        try:
            with alone_in(setting.work):  # nobody else adds to records while they are read
                parts = parts_of(folder, setting, only=only, device=device, on_trouble=trouble)
                progress = _measure(parts, setting, parallel=parallel, keep=keep, trouble=trouble, screen=screen)
        except KeyboardInterrupt as stop:
            raise RunError("interrupted; records have what was measured, and the same call goes on") from stop
    for file in publish_all(parts, on_trouble=trouble):
        screen.print(escape(f"written {file}"), soft_wrap=True)
    if progress:
        screen.print(summary(parts, progress))
    failed = sum(one.failed for one in progress)
    if failed or troubled:
        what = [f"{failed} rows failed"] if failed else []
        what += [f"there was trouble with {', '.join(dict.fromkeys(troubled))}"] if troubled else []
        raise RunError(f"{' and '.join(what)}, as said above; the same call tries again")
    if any(one.left for one in progress):
        screen.print("the same command goes on from here")


def _measure(
    parts: Sequence["Part"],
    setting: "Setting",
    *,
    parallel: int,
    keep: bool,
    trouble: "Trouble",
    screen: "Console",
) -> list["Progress"]:
    """The missing rows, each named when it is done."""
    from rich.markup import escape

    from thresher.experiments.everything import measure_all

    if any(part.missing for part in parts):  # a folder that is not there is no experiment's own trouble
        if setting.models is None and setting.data is None:
            raise ConfigError(NO_PLACES)
        setting.model("")
        setting.data_folder()

    def say(part: "Part", key: "Key", what: str) -> None:
        screen.print(escape(f"{part.folder.name}: {' '.join(map(str, key.values()))}: {what}"), soft_wrap=True)

    return measure_all(
        parts,
        parallel=parallel,
        keep=keep,
        on_row=lambda part, key, row: say(part, key, f"{row['seconds']} s"),
        on_failure=lambda part, key, error: say(part, key, f"failed. {reason_of(error)}"),
        on_trouble=trouble,
    )


def summary(parts: Sequence["Part"], progress: Sequence["Progress"]) -> "Table":
    from rich.table import Table

    table = Table("experiment", title="rows", title_justify="left")
    for name in ("measured now", "recorded", "left", "failed"):
        table.add_column(name, justify="right")
    for part, one in zip(parts, progress, strict=True):
        table.add_row(part.folder.name, *map(str, (one.measured, one.recorded, one.left, one.failed)))
    return table
