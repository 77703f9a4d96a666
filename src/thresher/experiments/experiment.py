"""What an experiment is: rows to measure, and a way to publish them."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from thresher.errors import ConfigError

Row = dict[str, Any]
Key = dict[str, Any]  # the fields that tell a row from all others

# name -> the module with the functions of Experiment; imported when it is run
EXPERIMENTS = {name: f"thresher.experiments.{name}" for name in ("lengths", "table1", "tradeoff")}


@dataclass(frozen=True)
class Setting:
    """What a call is given: the settings in config.toml, and where things are on this machine.

    `deadline` is the time.monotonic() at which the call must end. Paths stay out of the records.
    """

    config: dict[str, Any]
    models: Path | None = None
    data: Path | None = None
    work: Path = Path("runs/experiments")
    deadline: float = float("inf")

    def model(self, name: str) -> Path:
        return _folder(self.models, "--models") / name

    def data_folder(self) -> Path:
        return _folder(self.data, "--data")


class Experiment(Protocol):
    """A module with these names."""

    KEY: tuple[str, ...]  # the fields of a row that make its key

    def check(self, setting: Setting) -> None:
        """Refuse a call that cannot be carried out, before any work."""

    def keys(self, config: dict[str, Any]) -> list[Key]:
        """Every row of the experiment, in the order to measure them."""

    def measure(self, key: Key, setting: Setting) -> Row | None:
        """One row without its key and provenance; None where the deadline came first and the next call goes on."""

    def publish(self, rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
        """Make tables and figures of what was measured so far; returns what was written."""


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment '{name}'; known experiments: {', '.join(EXPERIMENTS)}")
    module: Any = importlib.import_module(EXPERIMENTS[name])
    experiment: Experiment = module
    return experiment


def _folder(path: Path | None, flag: str) -> Path:
    if path is None:
        raise ConfigError(f"there are rows to measure; say where things are with {flag} DIR")
    if not path.is_dir():
        raise ConfigError(f"{flag} {path} is not a folder; give the folder that holds them")
    return path
