"""Packing and compacting: exact cases by hand, then properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thresher.engine.backends.cpu import Cpu, groups_of_equal_length
from thresher.engine.ragged import Ragged, idle_rows

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def packed(lengths: list[int]) -> Ragged:
    """Value 100 * sequence + position."""
    return Ragged.pack([100 * row + torch.arange(length) for row, length in enumerate(lengths)])


def unpacked(batch: Ragged) -> list[torch.Tensor]:
    """The runs, in the order of the input sequences."""
    runs = torch.split(batch.values, batch.lengths.tolist())
    return [runs[i] for i in batch.sequences.argsort().tolist()]


def test_pack_by_hand() -> None:
    batch = packed([2, 3, 1])
    assert batch.values.tolist() == [0, 1, 100, 101, 102, 200]
    assert batch.cu_seqlens.tolist() == [0, 2, 5, 6]
    assert batch.positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert (batch.first.tolist(), batch.lengths.tolist()) == ([0, 2, 5], [2, 3, 1])


def test_compact_by_hand() -> None:
    keep = torch.tensor([True, False, True, False, True, True])
    smaller, rows = packed([2, 3, 1]).compact(keep)
    assert rows.tolist() == [0, 2, 4, 5]
    assert smaller.values.tolist() == [0, 100, 102, 200]
    assert smaller.positions.tolist() == [0, 0, 2, 0]
    assert smaller.cu_seqlens.tolist() == [0, 1, 3, 4]


def test_compact_longest_first_by_hand() -> None:
    keep = torch.tensor([True, False, True, False, True, True])
    smaller, rows = packed([2, 3, 1]).compact(keep, longest_first=True)
    assert rows.tolist() == [2, 4, 0, 5]
    assert smaller.sequences.tolist() == [1, 0, 2]
    assert [part.tolist() for part in unpacked(smaller)] == [[0], [100, 102], [200]]


def test_nothing_may_become_empty() -> None:
    with pytest.raises(ValueError, match="lost all its tokens"):
        packed([2, 1]).compact(torch.tensor([True, True, False]))
    with pytest.raises(ValueError, match="at least one token"):
        Ragged.pack([torch.arange(2), torch.arange(0)])
    with pytest.raises(ValueError, match="at least one sequence"):
        Ragged.pack([])


@given(LENGTHS)
def test_packed_runs_are_the_sequences(lengths: list[int]) -> None:
    parts = [100 * row + torch.arange(length) for row, length in enumerate(lengths)]
    assert all(torch.equal(a, b) for a, b in zip(unpacked(Ragged.pack(parts)), parts, strict=True))


@given(LENGTHS, st.randoms(use_true_random=False), st.booleans())
def test_compacting_drops_the_same_tokens_from_every_sequence(lengths: list[int], random: object, sort: bool) -> None:
    """Also twice in a row: what is left is what was kept, with its original positions."""
    batch, expected = packed(lengths), [[100 * row + i for i in range(n)] for row, n in enumerate(lengths)]
    for _ in range(2):
        keep = torch.tensor([random.random() < 0.6 for _ in batch.values])  # type: ignore[attr-defined]
        keep[batch.first] = True
        kept = set(batch.values[keep].tolist())
        batch, _ = batch.compact(keep, longest_first=sort)
        expected = [[value for value in row if value in kept] for row in expected]
        assert [part.tolist() for part in unpacked(batch)] == expected
        assert torch.equal(batch.positions, batch.values % 100)
        if sort:
            assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)


@given(LENGTHS)
def test_groups_cover_every_row_once(lengths: list[int]) -> None:
    groups = list(groups_of_equal_length(packed(lengths)))
    assert [length for _, count, length in groups for _ in range(count)] == lengths
    assert [start for start, _, _ in groups] == [sum(c * n for _, c, n in groups[:i]) for i in range(len(groups))]
    assert all(a[2] != b[2] for a, b in zip(groups, groups[1:], strict=False))


@pytest.mark.parametrize(
    ("rows", "whole"), [(1, 1), (25, 25), (52, 52), (53, 54), (131, 136), (257, 272), (1000, 1008), (1700, 1728)]
)
def test_steps_are_small_for_few_rows(rows: int, whole: int) -> None:
    assert rows + idle_rows(rows, Cpu.row_step) == whole
    assert idle_rows(rows, 1) == 0


def test_few_rows_are_idle_and_few_shapes_there_are() -> None:
    """A sixteenth at most; 16 or 32 shapes for every doubling, whole ones among them."""
    whole = [rows + idle_rows(rows, Cpu.row_step) for rows in range(1, 8193)]
    assert all(16 * (filled - rows) <= rows for rows, filled in enumerate(whole, 1))
    assert whole == sorted(whole) and all(idle_rows(filled, Cpu.row_step) == 0 for filled in set(whole))
    assert len(set(whole)) < 240
