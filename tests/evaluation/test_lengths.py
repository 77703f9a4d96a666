"""Quantiles and divergence of lengths, on hand-sized data."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.errors import DataError
from thresher.evaluation.lengths import kl_divergence, length_statistics, quantiles

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def test_quantiles_by_hand() -> None:
    assert quantiles([4, 1, 3, 2, 5], (0.25, 0.5, 0.75)) == (2, 3, 4)
    assert quantiles([10, 20], (0.5,)) == (15,)


def test_divergence_by_hand() -> None:
    """Bins [1, 2) and [2, 3]: shares 3/4, 1/4 against 1/4, 3/4."""
    train, evaluated = [1, 1, 1, 3], [1, 3, 3, 3]
    expected = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert kl_divergence(train, evaluated, bins=2) == pytest.approx(expected)


def test_a_bin_that_is_empty_on_one_side_is_left_out() -> None:
    """Three bins on 1..4; the last has training rows only: shares 1/2, 1/4 (and 1/4) against 1/2, 1/2."""
    assert kl_divergence([1, 1, 2, 4], [1, 2], bins=3) == pytest.approx(0.25 * math.log(0.25 / 0.5))


def test_cutting_moves_long_rows_into_the_last_bin() -> None:
    assert kl_divergence([1, 9], [1, 4], bins=2) == pytest.approx(0.5 * math.log(0.5))
    assert kl_divergence([1, 9], [1, 4], bins=2, longest=3) == 0


def test_a_divergence_has_a_direction() -> None:
    train, evaluated = [1, 1, 1, 1, 3], [1, 3]
    assert kl_divergence(train, evaluated, bins=2) != pytest.approx(kl_divergence(evaluated, train, bins=2))


@given(LENGTHS, st.integers(1, 50))
def test_equal_distributions_do_not_differ(lengths: list[int], bins: int) -> None:
    assert kl_divergence(lengths, lengths * 2, bins=bins) == pytest.approx(0, abs=1e-12)


@given(LENGTHS, LENGTHS)
def test_one_bin_tells_nothing_apart(train: list[int], evaluated: list[int]) -> None:
    assert kl_divergence(train, evaluated, bins=1) == pytest.approx(0)


@given(LENGTHS, LENGTHS, st.integers(1, 20))
def test_at_least_zero_where_no_bin_is_left_out(train: list[int], evaluated: list[int], bins: int) -> None:
    both = train + evaluated
    assert kl_divergence(both, both + evaluated, bins=bins) >= -1e-12


def test_statistics_are_of_whole_rows() -> None:
    found = length_statistics(list(range(1, 202)), [200, 200], bins=4, longest=128)
    assert found.train_quartiles == (51, 101, 151) and found.eval_quartiles == (200, 200, 200)
    assert found.train_p99 == pytest.approx(199)


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="0 and 1 rows"):
        kl_divergence([], [1], bins=2)
    with pytest.raises(DataError, match="0 rows"):
        quantiles([], (0.5,))
