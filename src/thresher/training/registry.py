"""From a method's name to its class. Training imports no rival itself: the table of names says where each one lives."""

import importlib

from thresher.errors import ConfigError
from thresher.methods import TABLE, check_method
from thresher.training.method import Method


def method_named(name: str) -> type[Method]:
    """The method that `TrainConfig.method` names."""
    check_method(name)
    if name not in TABLE:
        raise ConfigError(f"method = {name!r} is not one of: {', '.join(TABLE)}")
    module, _, found = TABLE[name].home.partition(":")
    method: type[Method] = getattr(importlib.import_module(module), found)
    return method
