"""Every way to choose the tokens to drop, by name: where its class is, and what it judges tokens by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thresher.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One method. `home` is its class as module:Class, imported when it is asked for.

    `score` is what it judges tokens by unless told otherwise: rivals as published, ours by what was found best. One
    that `learns`, in a soft stage, can do so at the price lambda; the others need a target. One that
    `rejoins` lets dropped tokens take part again in the last layers, for heads that gain by it.
    """

    home: str
    score: str = "attention"
    learns: bool = False
    rejoins: bool = False


TABLE = {
    "thresher": Entry("thresher.training.thresher:Thresher", score="value", rejoins=True),
    "ltp": Entry("thresher.training.method:Ltp", learns=True),
    "manual": Entry("thresher.baselines.plain:Manual"),
    "spatten": Entry("thresher.baselines.topk:Spatten"),
    "lat": Entry("thresher.baselines.lat:Lat"),
    "power": Entry("thresher.baselines.power:Power", learns=True),
    "collapse": Entry("thresher.baselines.plain:Collapse"),
    "random": Entry("thresher.baselines.topk:Random"),
    "dense": Entry("thresher.baselines.plain:Dense"),
}
METHODS = tuple(TABLE)
LEARNING_METHODS = tuple(name for name, entry in TABLE.items() if entry.learns)
FORMER_METHODS = {"learned": "thresher", "soft": "ltp"}  # what runs, settings and records say that are older than these


def score_of(method: str) -> str:
    """What a method judges tokens by unless told otherwise."""
    return TABLE[method].score


def rejoin_of(method: str, *, layers: int) -> int:
    """Layers at the end that dropped tokens take part in again unless told otherwise, for heads that gain by it.
    `layers`: of the model; few leave room for one such layer, or none."""
    return min(2, layers // 3) if TABLE[method].rejoins else 0


def with_methods_today(saved: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """What was saved, with the present names of methods in its fields `names` ("method" unless told otherwise).

    This is the only place that knows the former names' meaning; who types one is told the present one instead.
    """
    present = dict(saved)
    for name in names or ("method",):
        if isinstance(present.get(name), str):
            word, dash, rest = present[name].partition("-")  # a record's variant may go on: soft-plain-mask
            present[name] = FORMER_METHODS.get(word, word) + dash + rest
    return present


def check_method(name: Any) -> None:
    """Refuse a former name with the present one."""
    if isinstance(name, str) and name in FORMER_METHODS:
        raise ConfigError(f"method = '{name}' is now called '{FORMER_METHODS[name]}'; give that name")
