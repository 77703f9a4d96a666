"""What callers give an engine, checked by kind and range before anything is computed with it."""

import math
import operator
from typing import Any

from thresher.errors import ConfigError

SHORTEST = 4  # a text of one token and its special tokens, with a separator to spare


def check_dial(dial: Any) -> float:
    """A number from 0 on: 0 is dense, 1 as trained."""
    try:
        value = math.nan if isinstance(dial, bool | str | bytes) else float(dial)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # none, a huge one, a tensor of several
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"dial = {_shown(dial)} must be a number from 0 on; 0 is dense and 1 as trained")
    return value


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
            f"dtype = {_shown(dtype)} is of type {type(dtype).__name__}; give a name such as 'auto' or 'fp32'"
        )
    return dtype


def _whole(name: str, value: Any, *, low: int, unit: str) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # numpy's and torch's whole numbers, too
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{name} = {_shown(value)} is of type {type(value).__name__}; give a whole number of {unit}")
    if number < low:
        raise ConfigError(f"{name} = {_shown(number)} is below {low}, the smallest allowed value")
    return number


def _shown(value: Any) -> str:
    """As Python writes it, or the beginning of that; whole numbers of thousands of digits are not written at all."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."
