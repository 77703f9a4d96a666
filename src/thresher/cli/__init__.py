"""The command line: one short file per verb. Heavy imports happen inside the verbs, so that --help is quick."""

import os
import sys

import typer

from thresher.cli import demo, doctor, evaluate, explain, prune
from thresher.cli.output import fail
from thresher.errors import ConfigError, ThresherError

app = typer.Typer(
    name="thresher",
    help="Learned token pruning for transformer encoders: learn which tokens a model can drop, then drop them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("prune")(prune.prune)
app.command("eval")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run a command; user errors are one line, exit code 2 for bad settings and 1 for everything else."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except ConfigError as error:
        sys.exit(fail(str(error), code=2))
    except ThresherError as error:
        sys.exit(fail(str(error), code=1))
    except KeyboardInterrupt:
        sys.exit(fail("interrupted; a training run goes on from its last saved state with --resume", code=1))
