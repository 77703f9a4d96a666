"""What callers give an engine: numbers of any library, and one clear error for the rest."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from thresher.engine.checks import (
    check_dtype_name,
    check_max_length,
    check_max_tokens,
    check_threads,
    check_window,
    check_workers,
)
from thresher.errors import ConfigError
from thresher.models.plan import check_dial


@pytest.mark.parametrize("dial", [0, 0.0, 1, 0.5, 3, np.float32(0.5), np.int64(2), torch.tensor(0.5), Decimal("0.5")])
def test_dials(dial: Any) -> None:
    found = check_dial(dial)
    assert type(found) is float and found == float(dial)


@pytest.mark.parametrize(
    "dial",
    ["1", b"1", None, True, -0.1, math.nan, math.inf, 10**400, -(10**5000), [1], {}, torch.tensor([1.0, 2.0]), 1j],
    ids=lambda dial: type(dial).__name__,  # some cannot be written
)
def test_no_dials(dial: Any) -> None:
    with pytest.raises(ConfigError, match=r"^dial = .* must be a number from 0 on; 0 is dense and 1 as trained$"):
        check_dial(dial)


@pytest.mark.parametrize(
    ("check", "least"),
    [(check_window, 1), (check_max_tokens, 1), (check_max_length, 4)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_whole_numbers(check: Callable[[Any], int], least: int) -> None:
    name = check.__name__.removeprefix("check_")
    for value in (least, 1024, np.int32(1024), torch.tensor(1024), 2**70):
        assert check(value) == int(value) and type(check(value)) is int
    for value in (1.5, 31.0, "8", True, [8], object(), torch.tensor(8.0), math.nan):
        with pytest.raises(ConfigError, match=rf"^{name} = .* is of type \w+; give a whole number of (texts|tokens)$"):
            check(value)
    for value in (least - 1, 0, -7, -(10**5000)):
        with pytest.raises(ConfigError, match=rf"^{name} = .* is below {least}, the smallest allowed value$"):
            check(value)


def test_no_longest_text_is_a_choice_and_no_window_is_none() -> None:
    assert check_max_length(None) is None
    for check in (check_window, check_max_tokens):
        with pytest.raises(ConfigError, match="= None is of type NoneType; give a whole number of"):
            check(None)


@pytest.mark.parametrize("check", [check_threads, check_workers])
def test_a_million_threads_would_end_the_process(check: Callable[[Any], int | None]) -> None:
    assert check(None) is None and check(1024) == 1024
    for value in (1025, 10**6, 10**5000):
        with pytest.raises(ConfigError, match=r"^(threads|workers) = .* is above 1024, the largest allowed value$"):
            check(value)


def test_names_of_arithmetic() -> None:
    assert check_dtype_name("bf16") == "bf16"
    for value in (None, 16, torch.float32, b"fp32", ["fp32"], object()):
        with pytest.raises(ConfigError, match=r"^dtype = .* is of type \w+; give a name such as 'auto' or 'fp32'$"):
            check_dtype_name(value)


def test_values_are_shown_in_short() -> None:
    with pytest.raises(ConfigError) as caught:
        check_window([0] * 1000)
    assert len(str(caught.value)) < 150
