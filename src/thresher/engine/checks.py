"""What callers give an engine, checked by kind and range before anything is computed with it."""

import operator
from typing import Any

from thresher.errors import ConfigError
from thresher.text import shown

SHORTEST = 4  # a text of one token and its special tokens, with a separator to spare


def check_window(window: Any) -> int:
    """How many texts are read at a time."""
    return _whole("window", window, low=1, unit="texts")


def check_max_tokens(max_tokens: Any) -> int:
    """How many tokens a batch may have."""
    return _whole("max_tokens", max_tokens, low=1, unit="tokens")


def check_max_length(max_length: Any) -> int | None:
    """The longest text in tokens, or None for the longest there is."""
    return None if max_length is None else _whole("max_length", max_length, low=SHORTEST, unit="tokens")


def check_dtype_name(dtype: Any) -> str:
    """The name of an arithmetic; whether it is a known one depends on the backend."""
    if not isinstance(dtype, str):
        raise ConfigError(
            f"dtype = {shown(dtype)} is of type {type(dtype).__name__}; give a name such as 'auto' or 'fp32'"
        )
    return dtype


def _whole(name: str, value: Any, *, low: int, unit: str) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # numpy's and torch's whole numbers, too
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{name} = {shown(value)} is of type {type(value).__name__}; give a whole number of {unit}")
    if number < low:
        raise ConfigError(f"{name} = {shown(number)} is below {low}, the smallest allowed value")
    return number
