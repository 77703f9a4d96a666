import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.tasks import Example
from thresher.tasks.splits import fingerprint, hold_out, hold_out_selection, leak_note, spread

TEXTS = st.text(alphabet=st.characters(), max_size=3)
ROWS = st.lists(st.builds(Example, TEXTS, st.none() | TEXTS, st.integers(0, 2)), max_size=60)


def rows(count: int, copies: int = 1) -> list[Example]:
    return [Example(f"text {i}", None, 0) for i in range(count) for _ in range(copies)]


@settings(max_examples=200, deadline=None)
@given(examples=ROWS, share=st.floats(0.01, 0.99), at_most=st.integers(1, 30), seed=st.integers(0, 9))
def test_hold_out_invariants(examples: list[Example], share: float, at_most: int, seed: int) -> None:
    train, held = hold_out(examples, share=share, at_most=at_most)
    # nothing lost, nothing doubled
    assert Counter(train) + Counter(held) == Counter(examples)
    # copies of a text, whatever their labels, are on one side
    keys = {fingerprint(row) for row in train}
    assert keys.isdisjoint({fingerprint(row) for row in held})
    # both sides exist where two different rows do
    different = {fingerprint(row) for row in examples}
    assert (len(train) > 0) == (len(examples) > 0)
    assert (len(held) > 0) == (len(different) > 1)
    # the order of the rows decides nothing
    shuffled = random.Random(seed).sample(examples, len(examples))
    assert Counter(hold_out(shuffled, share=share, at_most=at_most)[1]) == Counter(held)
    # given order is kept
    assert train == [row for row in examples if fingerprint(row) in keys]


@settings(max_examples=100, deadline=None)
@given(count=st.integers(2, 80), share=st.floats(0.01, 0.99), at_most=st.integers(1, 30))
def test_size_without_copies_is_exact(count: int, share: float, at_most: int) -> None:
    _, held = hold_out(rows(count), share=share, at_most=at_most)
    assert len(held) == min(at_most, max(1, round(share * count)), count - 1)


def test_held_rows_have_the_smallest_hashes() -> None:
    train, held = hold_out(rows(100), share=0.5, at_most=7)
    assert max(map(fingerprint, held)) < min(map(fingerprint, train))


def test_exact_rows() -> None:
    """The choice is part of every published number: it may not change with the process, as Python's hash does."""
    _, held = hold_out([Example(str(i), None, 0) for i in range(20)], share=0.2, at_most=9)
    assert [row.text for row in held] == ["3", "16", "17", "19"]


def test_groups_larger_than_the_share() -> None:
    train, held = hold_out(rows(3, copies=4), share=0.1, at_most=2)
    assert (len(train), len(held)) == (8, 4)


def test_text_and_pair_are_kept_apart() -> None:
    together = {fingerprint(Example(*pair, 0)) for pair in (("ab", "c"), ("a", "bc"), ("abc", ""), ("abc", None))}
    assert len(together) == 4


@pytest.mark.parametrize(("share", "at_most"), [(0.0, 5), (1.0, 5), (0.5, 0)])
def test_senseless_sizes(share: float, at_most: int) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        hold_out(rows(3), share=share, at_most=at_most)


def test_selection_avoids_test_rows_but_train_keeps_them() -> None:
    examples = rows(50)
    _, would_be_held = hold_out(examples, share=0.1, at_most=2000)
    train, selection, leaked = hold_out_selection(examples, [would_be_held[:2], would_be_held[2:]])
    assert leaked == 5
    assert len(train) + len(selection) == 50
    assert set(would_be_held) <= set(train)
    assert not set(selection) & set(would_be_held)
    assert leak_note(leaked) == "; 5 training rows also occur in the test rows and stay in training"
    assert leak_note(1) == "; 1 training row also occurs in the test rows and stays in training"
    assert leak_note(0) == ""


@given(rows=st.integers(0, 300), count=st.integers(1, 300))
def test_spread_rows_are_different_and_from_everywhere(rows: int, count: int) -> None:
    """Files are often sorted by label: a part that begins at the start would be of one class."""
    found = spread(range(rows), count)
    assert len(found) == min(rows, count) and len(set(found)) == len(found)
    assert found == sorted(found)
    gaps = [after - before for before, after in pairwise([*found, rows])]
    assert not gaps or max(gaps) - min(gaps) <= 1
