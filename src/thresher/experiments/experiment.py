"""What an experiment is: rows to measure, and a way to publish them."""

import importlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from thresher.errors import ConfigError

Row = dict[str, Any]
Key = dict[str, Any]  # the fields that tell a row from all others

# name -> the module with the functions of Experiment; imported when it is run
NAMES = (
    *("lengths", "table1", "tradeoff", "robustness", "trajectories", "histograms"),  # the paper's
    *("recipe", "widths", "search", "scores", "queries", "tries", "reranker", "embeddings", "squad", "ner", "long"),
    "int8",
)
EXPERIMENTS = {name: f"thresher.experiments.{name}" for name in NAMES}


class Places:
    """A semaphore that asks who is first: of all that wait, the lowest rank, not whoever came before.

    Who needs more places than there are gets all of them. The first waits until its places are free, and all others
    behind it: who needs many would wait for ever while others take one after the other.
    """

    def __init__(self, count: int) -> None:
        self._count, self._free, self._waiting = count, count, list[int]()
        self._changed = threading.Condition()

    def acquire(self, rank: int, *, timeout: float, weight: int = 1) -> bool:
        needed = min(weight, self._count)
        with self._changed:
            self._waiting.append(rank)
            try:
                taken = self._changed.wait_for(lambda: self._free >= needed and rank == min(self._waiting), timeout)
            finally:
                self._waiting.remove(rank)
                self._changed.notify_all()  # the next may be first now
            if taken:
                self._free -= needed
            return taken

    def release(self, *, weight: int = 1) -> None:
        with self._changed:
            self._free += min(weight, self._count)
            self._changed.notify_all()


@dataclass(frozen=True)
class Setting:
    """What a call is given: the settings in config.toml, and where things are on this machine.

    `deadline` is the time.monotonic() at which the call must end, `stopping` is set where it must end before that.
    `places` counts what may compute at a time: rows that wait for each other hold none. `leftovers` are folders that a
    row needs no more once it is recorded. Of rows that wait for a place, the one of the lowest `rank` gets it; `weight`
    is how many it takes.
    `program` is what a training run is started with: a module, and its first words. Paths stay out of the records.
    """

    config: dict[str, Any]
    models: Path | None = None
    data: Path | None = None
    work: Path = Path("runs/experiments")
    deadline: float = float("inf")
    places: Places = field(default_factory=lambda: Places(1))
    stopping: threading.Event = field(default_factory=threading.Event)
    leftovers: list[Path] = field(default_factory=list)
    rank: int = 0
    weight: int = 1
    program: tuple[str, ...] = ("thresher",)

    def over(self) -> bool:
        return self.stopping.is_set() or time.monotonic() >= self.deadline

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Wait for a place to compute in; False where the call must end first."""
        left = self.deadline - time.monotonic()
        taken = left > 0 and self.places.acquire(
            self.rank, timeout=min(left, threading.TIMEOUT_MAX), weight=self.weight
        )
        try:
            yield taken and not self.stopping.is_set()
        finally:
            if taken:
                self.places.release(weight=self.weight)

    def model(self, name: str) -> Path:
        return _folder(self.models, "--models") / name

    def data_folder(self) -> Path:
        return _folder(self.data, "--data")


class Experiment(Protocol):
    """A module with these names, and where it needs them `joined` (see runner.join) and `folders` (see everything)."""

    KEY: tuple[str, ...]  # the fields of a row that make its key

    def check(self, setting: Setting) -> None:
        """Refuse a call that cannot be carried out, before any work."""

    def keys(self, config: dict[str, Any]) -> list[Key]:
        """Every row of the experiment, in the order to measure them."""

    def measure(self, key: Key, setting: Setting) -> Row | None:
        """One row without its key and provenance; None where the deadline came first and the next call goes on."""

    def publish(self, rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
        """Make tables and figures of what was measured so far; returns what was written."""


def key_of(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


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
