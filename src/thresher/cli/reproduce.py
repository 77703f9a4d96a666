"""thresher reproduce: one of the paper's tables or figures, by name."""

from pathlib import Path
from typing import Annotated

import typer

from thresher.errors import ConfigError, RunError


def reproduce(
    name: Annotated[str, typer.Argument(help="the experiment's name, a folder of experiments/ such as lengths")],
    models: Annotated[Path | None, typer.Option(help="folder with the models, under the names in config.toml")] = None,
    data: Annotated[Path | None, typer.Option(help="folder with TASK/train*.jsonl[.xz] of every task")] = None,
    folder: Annotated[Path, typer.Option(help="where the experiments are")] = Path("experiments"),
    work: Annotated[Path, typer.Option(help="where unfinished rows keep their state")] = Path("runs/experiments"),
    parallel: Annotated[int, typer.Option(help="rows at a time; training runs have processes of their own")] = 1,
    minutes: Annotated[float, typer.Option(help="stop after this time; the same call then goes on")] = 9.0,
    draw: Annotated[bool, typer.Option("--draw", help="only make tables and figures anew from the records")] = False,
) -> None:
    """Measure what records.jsonl does not have yet, and make table and figure of all of it.

    Example: thresher reproduce lengths --models models --data glue
    """
    import time

    from rich.console import Console
    from rich.markup import escape

    from thresher.cli.output import quiet_libraries
    from thresher.experiments.experiment import Key, Setting, experiment_named
    from thresher.experiments.runner import RECORDS, in_order, read_config, read_records, run

    if not minutes > 0 or parallel < 1:
        raise ConfigError(f"minutes = {minutes:g} must be greater than 0, and parallel = {parallel} at least 1")
    experiment = experiment_named(name)
    place = folder / name
    config = read_config(place)
    screen = Console(highlight=False)

    def named(key: Key) -> str:
        return " ".join(map(str, key.values()))

    quiet_libraries()
    left = failed = 0
    if not draw:
        end = time.monotonic() + 60 * minutes
        try:
            progress = run(
                experiment,
                place,
                Setting(config, models=models, data=data, work=work, deadline=end),
                command=f"thresher reproduce {name} --models models --data data",  # this machine's folders say nothing
                parallel=parallel,
                on_row=lambda key, row: screen.print(escape(f"{named(key)}: {row['seconds']} s")),
                on_failure=lambda key, error: screen.print(escape(f"{named(key)}: failed. {error}"), soft_wrap=True),
            )
        except KeyboardInterrupt as stop:
            raise RunError(f"interrupted; {place / RECORDS} has what was measured, and the same call goes on") from stop
        left, failed = progress.left, progress.failed
        screen.print(f"{progress.measured} rows measured, {progress.recorded} recorded, {left} left")
    rows = in_order(read_records(place / RECORDS), experiment, config)
    if not rows and not failed:
        raise ConfigError(f"{place / RECORDS} has no rows yet; measure some first, without --draw")
    for file in experiment.publish(rows, place, config) if rows else []:
        screen.print(escape(f"written {file}"))
    if failed:
        raise RunError(f"{failed} of {left} rows that are left failed, as said above; the same call tries them again")
    if left:
        screen.print("the same command goes on from here")
