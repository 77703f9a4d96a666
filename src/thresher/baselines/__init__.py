"""Rival ways to choose tokens, for the same trainer and the same cost model. docs/baselines.md compares them."""

from thresher.baselines.lat import Lat
from thresher.baselines.plain import Collapse, Dense, Manual
from thresher.baselines.power import Power
from thresher.baselines.topk import Random, Spatten
from thresher.config import check_method
from thresher.errors import ConfigError
from thresher.training.method import Ltp, Method
from thresher.training.thresher import Thresher

__all__ = ["method_named"]

_METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Thresher, Ltp, Manual, Spatten, Lat, Power, Collapse, Random, Dense)
}


def method_named(name: str) -> type[Method]:
    """The method that `TrainConfig.method` names, for `Trainer(..., method=...)`."""
    check_method(name)
    if name not in _METHODS:
        raise ConfigError(f"method = {name!r} is not one of: {', '.join(_METHODS)}")
    return _METHODS[name]
