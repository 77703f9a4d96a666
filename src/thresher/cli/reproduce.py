"""thresher reproduce: one of the paper's tables or figures, by name, or what all of them lack."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.errors import ConfigError, RunError, ThresherError

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.experiments.experiment import Experiment, Setting
    from thresher.experiments.runner import Progress


# Those of thresher.experiments.experiment, which would be loaded for every other command too; a test compares the two.
NAMES = (
    *("lengths", "table1", "tradeoff", "robustness", "trajectories", "histograms"),  # the paper's
    *("recipe", "widths", "search", "scores", "queries", "tries", "reranker", "embeddings", "squad", "ner", "long"),
    "int8",
)
ALL = "all"
NO_PLACES = "there are rows to measure; say where things are with --models DIR and --data DIR"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help=f"the experiment's name: {', '.join(NAMES)} (or {ALL}: what any of them lacks, in one go)"),
    ],
    models: Annotated[Path | None, typer.Option(help="folder with the models, under the names in config.toml")] = None,
    data: Annotated[Path | None, typer.Option(help="folder with TASK/train*.jsonl[.xz] of every task")] = None,
    folder: Annotated[Path, typer.Option(help="where the experiments are")] = Path("experiments"),
    work: Annotated[Path, typer.Option(help="where unfinished rows keep their state")] = Path("runs/experiments"),
    parallel: Annotated[
        int, typer.Option(help=f"rows at a time, of {ALL} together; training runs have processes of their own")
    ] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="stop after this time; the same call then goes on; default: when all is done")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="measure only rows with this, such as method=dense or seed=1,2; repeatable")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave the runs that rows are measured on in --work")] = False,
    draw: Annotated[bool, typer.Option("--draw", help="only make tables and figures anew from the records")] = False,
) -> None:
    """Measure an experiment of experiments/, from a checkout: the rows that its records lack, then tables and figures.

    Example: thresher reproduce lengths --models models --data glue
    """
    import importlib.util
    import math
    import time
    from dataclasses import replace

    from rich.markup import escape

    if importlib.util.find_spec("thresher.experiments") is None:
        raise RunError("experiments are not part of the installed package; clone the repository and run this there")

    from thresher.cli.output import console, quiet_libraries
    from thresher.experiments.experiment import Setting, experiment_named
    from thresher.experiments.runner import RECORDS, publish_recorded, read_config

    time_left = math.inf if minutes is None else 60 * minutes
    if not time_left > 0:
        raise ConfigError(f"minutes = {minutes:g} must be greater than 0; leave --minutes out to have no limit")
    if parallel < 1:
        raise ConfigError(f"parallel = {parallel} must be at least 1, the number of rows at a time")
    wanted = _wanted(only or [])
    screen = console(as_json=False)
    quiet_libraries()
    setting = Setting({}, models=models, data=data, work=work, deadline=time.monotonic() + time_left)
    if name == ALL:
        from thresher.cli.reproduce_all import reproduce_all

        reproduce_all(folder, setting, parallel=parallel, only=wanted, keep=keep, draw=draw, screen=screen)
        return
    experiment = experiment_named(name)
    place = folder / name
    config = read_config(place)
    left = failed = 0
    if not draw:
        setting = replace(setting, config=config)
        progress = _measure(name, experiment, place, setting, parallel=parallel, only=wanted, keep=keep, screen=screen)
        left, failed = progress.left, progress.failed
        screen.print(f"rows: {progress.measured} measured now, {progress.recorded} recorded, {left} left")
    written = publish_recorded(experiment, place, config)
    if draw and not written:
        raise ConfigError(f"{place / RECORDS} has no rows yet; measure some first, without --draw")
    for file in written:
        screen.print(escape(f"written {file}"))
    if failed:
        raise RunError(f"{failed} of {left} rows that are left failed, as said above; the same call tries them again")
    if left:
        screen.print("the same command goes on from here")


def _wanted(words: list[str]) -> dict[str, list[str]]:
    """What --only names: field -> values."""
    found: dict[str, list[str]] = {}
    for word in words:
        field, equals, values = word.partition("=")
        if not (field and equals and values):
            raise ConfigError(f"--only {word}: give FIELD=VALUE, or several values as FIELD=VALUE,VALUE")
        found.setdefault(field, []).extend(values.split(","))
    return found


def _measure(
    name: str,
    experiment: "Experiment",
    place: Path,
    setting: "Setting",
    *,
    parallel: int,
    only: dict[str, list[str]],
    keep: bool,
    screen: "Console",
) -> "Progress":
    """The missing rows, each named when it is done."""
    from rich.markup import escape

    from thresher.experiments.experiment import Key
    from thresher.experiments.guard import alone_in
    from thresher.experiments.runner import COMMAND, RECORDS, run
    from thresher.hardware import choose_device

    def say(key: Key, what: str) -> None:
        screen.print(escape(f"{' '.join(map(str, key.values()))}: {what}"), soft_wrap=True)

    try:
        with alone_in(setting.work):
            _ask_for_places(experiment, place, setting)
            return run(
                experiment,
                place,
                setting,
                command=COMMAND.format(name),
                device=choose_device()[0],
                parallel=parallel,
                only=only,
                keep=keep,
                on_row=lambda key, row: say(key, f"{row['seconds']} s"),
                on_failure=lambda key, error: say(key, f"failed. {reason_of(error)}"),
            )
    except KeyboardInterrupt as stop:
        raise RunError(f"interrupted; {place / RECORDS} has what was measured, and the same call goes on") from stop


def _ask_for_places(experiment: "Experiment", place: Path, setting: "Setting") -> None:
    """Where neither folder is given, ask for both at once; the experiment itself asks for one after the other."""
    from thresher.experiments.runner import RECORDS, in_order, read_records

    if setting.models is None and setting.data is None:
        measured = in_order(read_records(place / RECORDS), experiment, setting.config)
        if len(measured) < len(experiment.keys(setting.config)):
            raise ConfigError(NO_PLACES)


def reason_of(error: Exception) -> str:
    """An error's own words; of one that is a bug also its type, and where it happened."""
    import traceback

    if isinstance(error, ThresherError):
        return str(error)
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()
