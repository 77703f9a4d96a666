"""Options that a command takes together: typer sees each of them, the command one dictionary."""

import inspect
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from thresher.cli.options import TEST_ROWS, chosen_settings, setting_flags, together
from thresher.cli.prune import prune
from thresher.config import PRUNE_FLAGS, TRAIN_FLAGS, PruneConfig, TrainConfig
from thresher.errors import ConfigError


def test_every_option_is_parsed_and_handed_over_in_its_group() -> None:
    seen: dict[str, Any] = {}

    @together(rows=TEST_ROWS, flags=setting_flags(TrainConfig, ("lambda_", "max_steps")))
    def command(
        run: Annotated[str, typer.Argument()], rows: dict[str, Any], flags: dict[str, Any], other: int = 3
    ) -> None:
        """What it does."""
        seen.update(run=run, rows=rows, flags=flags, other=other)

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["here", "--task", "sst2", "--lambda", "0.5", "--other", "4"])
    assert done.exit_code == 0, done.output
    assert seen["run"] == "here" and seen["other"] == 4
    assert seen["rows"] == {**dict.fromkeys(TEST_ROWS), "task": "sst2"}
    assert seen["flags"] == {"lambda_": 0.5, "max_steps": None}
    assert "What it does." in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["here", "--max-steps", "many"]).exit_code == 2


def test_prune_has_a_flag_for_every_setting_that_is_said_to_have_one() -> None:
    parameters = inspect.signature(prune).parameters
    assert set(TRAIN_FLAGS) | set(PRUNE_FLAGS) <= set(parameters)
    for kind, names in ((TrainConfig, TRAIN_FLAGS), (PruneConfig, PRUNE_FLAGS)):
        for name in names:
            (option,) = parameters[name].annotation.__metadata__
            default = getattr(kind(), name)
            assert option.help.startswith(kind.help_for(name)) and parameters[name].default is None
            assert ("; default: " in option.help) == (default is not None)
    assert parameters["target_flops"].annotation.__metadata__[0].help.endswith("; default: 0.5")
    assert parameters["protect"].annotation.__metadata__[0].help.endswith("; default: first")


def test_settings_are_given_once() -> None:
    assert chosen_settings({"lr": 1e-4, "protect": [], "seed": None}, ["clip=0.5", "ramp=plain"]) == {
        "lr": 1e-4,
        "clip": 0.5,
        "ramp": "plain",
    }
    with pytest.raises(ConfigError, match="lr is given twice, as a flag and with --set; give it once"):
        chosen_settings({"lr": 1e-4}, ["lr=1e-3"])
