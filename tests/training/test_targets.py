"""What a batch learns from: the teacher's outputs of its rows, or of all their tokens, padded like the batch."""

import torch

from thresher.training.targets import Targets, padded


def test_of_rows() -> None:
    values = torch.arange(6.0).view(3, 2)
    assert torch.equal(Targets(values).of([2, 0], tokens=9), values[[2, 0]])


def test_of_tokens() -> None:
    values = torch.arange(12.0).view(6, 2)  # rows of 1, 3 and 2 tokens
    found = Targets(values, (1, 3, 2)).of([2, 0], tokens=4)
    assert found.shape == (2, 4, 2)
    assert torch.equal(found[0, :2], values[4:6]) and torch.equal(found[1, :1], values[:1])
    assert not found[0, 2:].any() and not found[1, 1:].any()


def test_padded_and_what_of_it_are_tokens() -> None:
    values = torch.arange(12.0).view(6, 2)
    found, alive = padded(values, torch.tensor([1, 3, 2]))
    assert alive.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert torch.equal(found[alive], values)
