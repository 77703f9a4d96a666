import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.errors import ConfigError
from thresher.tasks.batches import WINDOW, batches, sorted_batches

LENGTHS = st.lists(st.integers(1, 40), max_size=300)


@settings(max_examples=100, deadline=None)
@given(
    lengths=LENGTHS, size=st.integers(1, 9), seed=st.integers(0, 2**40), epoch=st.integers(0, 5), shuffle=st.booleans()
)
def test_every_row_once_in_full_batches(lengths: list[int], size: int, seed: int, epoch: int, shuffle: bool) -> None:
    made = batches(lengths, batch_size=size, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(row for batch in made for row in batch) == list(range(len(lengths)))
    sizes = [len(batch) for batch in made]
    assert sum(count != size for count in sizes) <= 1
    assert all(0 < count <= size for count in sizes)
    assert made == batches(lengths, batch_size=size, seed=seed, epoch=epoch, shuffle=shuffle)


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
    count = WINDOW * 2
    made = batches([1 + row % 7 for row in range(2 * count)], batch_size=2, seed=0, epoch=0, shuffle=False)
    assert {row for batch in made[:WINDOW] for row in batch} == set(range(count))


def test_unshuffled_order_by_hand() -> None:
    assert batches([5, 1, 3, 1, 2], batch_size=2, seed=0, epoch=0, shuffle=False) == [[1, 3], [4, 2], [0]]


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
