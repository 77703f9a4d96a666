import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.errors import ConfigError
from thresher.tasks.batches import WINDOW, batches, sorted_batches

LENGTHS = st.lists(st.integers(1, 40), max_size=300)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, size=st.integers(1, 9), seed=st.integers(0, 2**40), epoch=st.integers(0, 5))
def test_whole_batches_and_no_row_twice(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    made = batches(lengths, batch_size=size, seed=seed, epoch=epoch)
    rows = [row for batch in made for row in batch]
    assert len(rows) == len(set(rows)) == len(lengths) // size * size and set(rows) <= set(range(len(lengths)))
    assert all(len(batch) == size for batch in made)
    assert made == batches(lengths, batch_size=size, seed=seed, epoch=epoch)


def test_rows_left_out_are_any_and_not_the_longest() -> None:
    left_out = [
        set(range(63)) - {row for batch in batches(list(range(63)), batch_size=32, seed=0, epoch=e) for row in batch}
        for e in range(20)
    ]
    assert not set.intersection(*left_out), "every row has its turn"
    assert 20 < sum(sum(rows) / len(rows) for rows in left_out) / len(left_out) < 42, "short and long alike"


def test_seed_and_epoch_are_two_numbers() -> None:
    orders = [
        batches([1] * 64, batch_size=4, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert all(first != second for i, first in enumerate(orders) for second in orders[:i])


def test_batches_hold_similar_lengths_in_random_order() -> None:
    made = batches(list(range(1, 41)), batch_size=4, seed=0, epoch=0)
    spans = sorted((min(batch), max(batch)) for batch in made)
    assert spans == [(first, first + 3) for first in range(0, 40, 4)]
    assert [min(batch) for batch in made] != [span[0] for span in spans]


def test_sorting_stays_inside_a_window() -> None:
    made = batches(list(range(4 * WINDOW)), batch_size=2, seed=0, epoch=0)  # two windows
    gaps = sorted(max(batch) - min(batch) for batch in made)
    assert gaps[-1] > 1, "neighbours in length may be in different windows"
    in_one = batches(list(range(2 * WINDOW)), batch_size=2, seed=0, epoch=0)
    assert {max(batch) - min(batch) for batch in in_one} == {1}


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_token_budget(lengths: list[int], budget: int) -> None:
    made = sorted_batches(lengths, max_tokens=budget)
    assert sorted(row for batch in made for row in batch) == list(range(len(lengths)))
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
    longest = [lengths[row] for batch in made for row in batch]
    assert longest == sorted(longest, reverse=True)


def test_token_budget_by_hand() -> None:
    assert sorted_batches([3, 9, 3, 4, 1], max_tokens=8) == [[1], [3, 0], [2, 4]]
    assert sorted_batches([], max_tokens=8) == []


def test_senseless_sizes() -> None:
    with pytest.raises(ConfigError, match="batch_size = 0 must be at least 1"):
        batches([1], batch_size=0, seed=0, epoch=0)
    with pytest.raises(ConfigError, match="max_tokens = 0 must be at least 1"):
        sorted_batches([1], max_tokens=0)
