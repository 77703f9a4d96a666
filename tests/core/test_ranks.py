"""Places and counts: exact masks by hand, what no input may break, and noise that belongs to a text."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thresher.core.ranks import places, text_noise, top_keep


def booleans(*rows: str) -> Tensor:
    """'x.' -> [True, False]."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_places_by_hand() -> None:
    """Protected first, then falling scores, the earlier of equals first, dead tokens last whatever their score."""
    scores = torch.tensor([[0.1, 0.7, 0.9, 0.7, 5.0]])
    found = places(scores, alive=booleans("xxxx."), protected=booleans("x...."))
    assert found.tolist() == [[0, 2, 1, 3, 4]]


def test_top_keep_by_hand() -> None:
    scores = torch.tensor([[0.1, 0.7, 0.9, 0.7, 0.8], [0.1, 0.7, 0.9, 9.0, 9.0]])
    alive, protected = booleans("xxxxx", "xxx.."), booleans("x....", "x....")
    assert torch.equal(
        top_keep(scores, torch.tensor([3, 2]), alive=alive, protected=protected), booleans("x.x.x", "x.x..")
    )
    assert torch.equal(
        top_keep(scores, torch.tensor([9, 9]), alive=alive, protected=protected), booleans("xxxxx", "xxx..")
    )


def test_fewer_than_the_protected_ones_keeps_these_and_none_keeps_one() -> None:
    scores, alive = torch.tensor([[0.1, 0.7, 0.9, 0.2]]), booleans("xxxx")
    many = top_keep(scores, torch.tensor([1]), alive=alive, protected=booleans("x..x"))
    assert torch.equal(many, booleans("x..x"))
    one = top_keep(scores, torch.tensor([-3]), alive=alive, protected=booleans("...."))
    assert torch.equal(one, booleans("..x."))


@given(data=st.data())
def test_counts_protection_and_never_empty(data: st.DataObject) -> None:
    batch, tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    row = st.lists(st.sampled_from((0.0, 0.5, 1.0)), min_size=tokens, max_size=tokens)
    scores = torch.tensor(data.draw(st.lists(row, min_size=batch, max_size=batch)))
    flags = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
    alive = torch.tensor(data.draw(st.lists(flags, min_size=batch, max_size=batch)))
    alive[:, 0] = True
    protected = torch.tensor(data.draw(st.lists(flags, min_size=batch, max_size=batch))) & alive
    counts = torch.tensor(data.draw(st.lists(st.integers(-1, 10), min_size=batch, max_size=batch)))
    keep = top_keep(scores, counts, alive=alive, protected=protected)
    assert not bool((keep & ~alive).any()) and not bool((protected & ~keep).any())
    wanted = torch.maximum(counts.clamp(min=1), protected.sum(-1)).minimum(alive.sum(-1))
    assert torch.equal(keep.sum(-1), wanted)
    worst_kept = scores.masked_fill(~keep | protected, 2.0).amin(-1)
    best_dropped = scores.masked_fill(keep | ~alive, -1.0).amax(-1)
    assert bool((worst_kept >= best_dropped).all())


def test_noise_belongs_to_the_text_and_the_seed() -> None:
    ids = torch.tensor([[5, 9, 7, 0, 0], [5, 9, 8, 6, 4]])
    alive = booleans("xxx..", "xxxxx")
    noise = text_noise(ids, alive=alive, seed=1)
    alone = text_noise(torch.tensor([[5, 9, 7]]), alive=booleans("xxx"), seed=1)
    assert torch.equal(noise[0, :3], alone[0]), "padding and neighbours change nothing"
    assert not torch.equal(noise[0, :2], noise[1, :2]), "another text, other numbers"
    assert not torch.equal(noise, text_noise(ids, alive=alive, seed=2))
    assert bool(((noise >= 0) & (noise < 1)).all())


def test_noise_is_even_over_positions() -> None:
    """Each of 20 positions is among the first half about half of the time: no place in the text is favoured."""
    ids = torch.randint(0, 30_000, (2000, 20), generator=torch.Generator().manual_seed(0))
    alive = torch.ones_like(ids, dtype=torch.bool)
    noise = text_noise(ids, alive=alive, seed=2**63 - 1)
    first_half = places(noise, alive=alive, protected=torch.zeros_like(alive)) < 10
    share = first_half.double().mean(dim=0)
    assert float((share - 0.5).abs().max()) < 0.05
    agree = (first_half[:, :1] == first_half[:, 1:]).double().mean(dim=0)
    assert float((agree - 9 / 19).abs().max()) < 0.06, "neighbours are drawn without regard to each other"
