"""The command line: one short file per verb. Heavy imports happen inside the verbs, so that --help is quick."""

import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli import (
    bench,
    calibrate,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    prune,
    quantize,
    report,
    reproduce,
    score,
    search,
    serve,
)
from thresher.cli.output import fail, no_room, take_any_character
from thresher.cli.quiet import loud_afterwards
from thresher.errors import ConfigError, Interrupted, ThresherError
from thresher.interruption import interruptions
from thresher.workplace import has_state, work_of

app = typer.Typer(
    name="thresher",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

GO_ON = (prune.prune, search.search)  # these have --resume
# New objects until the collector looks for garbage. By itself it does at every 700: the libraries are a million that
# stay, and its looks take a sixth of a command's start.
LOOK_AFTER = 20_000


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Say how to go on after Ctrl-C or SIGTERM; left to typer, the program would end without a word."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        check_paths(options)
        try:
            with interruptions(at_once=True), loud_afterwards():
                command(*args, **options)
        except KeyboardInterrupt as stop:
            raise Interrupted(f"interrupted; {_advice(command, options.get('out'))}") from stop

    return run


def check_paths(options: Mapping[str, Any]) -> None:
    """Refuse what can be no path before any work, of commands without a request too."""
    from thresher.jobs.request import check_path

    for name, value in options.items():
        check_path(name, value)


def _advice(command: Callable[..., None], out: Path | None) -> str:
    if command is score.score and out is not None:
        return f"{work_of(out)} has what is done, if anything; the same command goes on"
    if command in GO_ON and out is not None:
        work = work_of(out)
        if has_state(work):
            return f"{work} has its state; the same command goes on with --resume"
        return "nothing was saved yet: there was nothing trained, or no time to save it"
    return "run it again, it starts anew" if command is demo.demo else "nothing was written"


for name, command in (
    ("demo", demo.demo),
    ("prune", prune.prune),
    ("search", search.search),
    ("calibrate", calibrate.calibrate),
    ("eval", evaluate.evaluate),
    ("quantize", quantize.quantize),
    ("export", export.export),
    ("explain", explain.explain),
    ("report", report.report),
    ("score", score.score),
    ("serve", serve.serve),
    ("bench", bench.bench),
    ("doctor", doctor.doctor),
    ("reproduce", reproduce.reproduce),
):
    app.command(name, cls=score.WithRay if command is score.score else None)(_interruptible(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        from thresher.records import thresher_version

        print(thresher_version())
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")]


@app.callback()
def thresher(version: Version = False) -> None:
    """Learned token pruning for transformer encoders: learn which tokens a model can drop, then drop them."""


def main() -> None:
    """Run a command; user errors are one line, exit code 2 for bad settings, 130 for an interruption as in a shell,
    and 1 for everything else."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:2] != ["serve"]:  # requests would wait for a look at more
        gc.set_threshold(LOOK_AFTER)
    take_any_character()
    try:
        app()
    except ConfigError as error:
        sys.exit(fail(str(error), code=2))
    except Interrupted as error:
        sys.exit(fail(str(error), code=130))
    except ThresherError as error:
        sys.exit(fail(str(error), code=1))
    except Exception as error:
        if (message := no_room(error)) is None:
            raise
        sys.exit(fail(message, code=1))
