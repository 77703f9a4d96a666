"""The dial under load: faster at a measured loss before anybody is refused, and back as soon as that is over."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.errors import CheckpointError, ConfigError
from thresher.records import read_json

FILE = "serving.json"  # in the run's folder
PRESSED, EASY = 0.5, 0.2  # parts of the time that requests have: above the one a gear up, below the other a gear down
HOLD_S = 2.0  # seconds in a gear before it is left for a slower one


@dataclass(frozen=True)
class Gear:
    """A dial, how many times as fast as dial 1 it was measured, and its agreement with the dense model; `score` where
    rows had labels."""

    dial: float
    speed: float
    agreement: float
    texts_per_s: float
    score: float | None = None


@dataclass(frozen=True)
class Measured:
    """What `thresher bench --gears` left in a run. kept: eleven deciles of the share of tokens that texts keep at dial
    1; gears by rising dial, from 1 on."""

    gears: tuple[Gear, ...]
    kept: tuple[float, ...]
    texts: int
    made_by: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_measured(folder: Path) -> Measured | None:
    """A run's table; None where it has none."""
    file = folder / FILE
    if not file.is_file():
        return None
    found = read_json(file, error=CheckpointError)
    try:
        gears = tuple(Gear(**row) for row in found["gears"])
        kept = tuple(float(value) for value in found["kept"])
        numbers = [*kept, *(value for gear in gears for value in (gear.dial, gear.speed, gear.agreement))]
        dials = [gear.dial for gear in gears]
        if not all(map(math.isfinite, numbers)) or dials != sorted(dials) or dials[:1] != [1.0] or len(kept) != 11:
            raise ValueError("gears must begin with dial 1 and rise, and kept be eleven deciles")
        return Measured(gears, kept, int(found["texts"]), dict(found["made_by"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); make it again with: thresher bench RUN --gears") from error


def gears_within(measured: Measured | None, *, least_agreement: float, name: str) -> tuple[Gear, ...]:
    """Those that an operator allows: dial 1, and faster ones with at least this agreement."""
    if measured is None:
        raise ConfigError(f"{name} has no table of gears; measure it first: thresher bench {name} --gears")
    first, *faster = measured.gears
    allowed = [first]
    for gear in faster:  # one that is not faster than the gears before it is of no use
        if gear.agreement >= least_agreement and gear.speed > allowed[-1].speed:
            allowed.append(gear)
    return tuple(allowed)


class GearBox:
    """Which of the gears is on. One is left for a faster one at once, and for a slower one not before HOLD_S."""

    def __init__(self, gears: Sequence[Gear] = ()) -> None:
        """Without gears the dial stays where it is."""
        self.gears = tuple(gears) or (Gear(1.0, 1.0, 1.0, 0.0),)
        self.now, self._since = 0, -math.inf

    @property
    def gear(self) -> Gear:
        return self.gears[self.now]

    def stay(self) -> None:
        """In the first gear, from now on."""
        self.gears, self.now = self.gears[:1], 0

    def choose(self, wait: float, timeout: float, now: float) -> Gear:
        """For a queue that takes `wait` seconds at dial 1, of requests that have `timeout` seconds."""

        def pressure(number: int) -> float:
            return wait / self.gears[number].speed / timeout

        if pressure(self.now) > PRESSED and self.now + 1 < len(self.gears):
            self.now, self._since = self.now + 1, now
        elif self.now and pressure(self.now - 1) < EASY and now - self._since >= HOLD_S:
            self.now, self._since = self.now - 1, now
        return self.gear
