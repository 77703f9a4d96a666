"""Decisions: strictness, protection, never empty, the soft gate's limit, and the ramps' values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thresher.core.gates import (
    falling_shares,
    hard_keep,
    limit_of,
    protected_tokens,
    ramp,
    soft_gate,
    threshold_leaving,
)

TIES = (0.0, 0.25, 0.5, 1.0, 1.5)


def booleans(*rows: str) -> Tensor:
    """'x.' -> [True, False]."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


@st.composite
def decisions(draw: st.DrawFn) -> tuple[Tensor, float, Tensor, Tensor]:
    """Scores full of ties, a threshold, a right-padded mask, and protected tokens among the live ones."""
    batch, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    row = st.lists(st.sampled_from(TIES), min_size=tokens, max_size=tokens)
    scores = torch.tensor(draw(st.lists(row, min_size=batch, max_size=batch)))
    lengths = torch.tensor(draw(st.lists(st.integers(1, tokens), min_size=batch, max_size=batch)))
    alive = torch.arange(tokens)[None] < lengths[:, None]
    flags = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
    protected = torch.tensor(draw(st.lists(flags, min_size=batch, max_size=batch))) & alive
    return scores, draw(st.sampled_from((*TIES, -math.inf, math.inf))), alive, protected


# --- hard ------------------------------------------------------------------------------------------------------------


def test_hard_keep_by_hand() -> None:
    """Above, tied, below, protected below, dead with a high score, protected but dead."""
    scores = torch.tensor([[1.5, 1.0, 0.5, 0.2, 9.0, 9.0]])
    keep = hard_keep(scores, 1.0, alive=booleans("xxxx.."), protected=booleans("...x.x"))
    assert torch.equal(keep, booleans("x..x.."))


def test_ties_are_pruned_and_the_next_number_up_is_not() -> None:
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    scores = torch.tensor([[2.0, 1.0, above]])
    assert torch.equal(hard_keep(scores, 1.0, alive=booleans("xxx"), protected=booleans("...")), booleans("x.x"))


def test_a_sequence_never_becomes_empty() -> None:
    """The best live token stays, the first of equals; rows that keep something are left alone."""
    scores = torch.tensor([[0.1, 0.3, 0.2, 9.0], [0.2, 0.2, 0.2, 0.2], [2.0, 0.1, 0.1, 0.1], [0.0, 0.0, 5.0, 5.0]])
    alive = booleans("xxx.", "xxxx", "xxxx", "xx..")
    keep = hard_keep(scores, 1.0, alive=alive, protected=torch.zeros_like(alive))
    assert torch.equal(keep, booleans(".x..", "x...", "x...", "x..."))
    everywhere = hard_keep(scores, math.inf, alive=alive, protected=torch.zeros_like(alive))
    assert everywhere.sum(dim=-1).tolist() == [1, 1, 1, 1]


def test_infinite_thresholds() -> None:
    scores, alive, first = torch.zeros(1, 4), booleans("xxx."), booleans("x...")
    assert torch.equal(hard_keep(scores, math.inf, alive=alive, protected=first), first)
    assert torch.equal(hard_keep(scores, -math.inf, alive=alive, protected=first), alive)


def test_a_threshold_of_zero_keeps_a_score_of_zero() -> None:
    limit = limit_of(torch.tensor(0.0))
    keep = hard_keep(torch.tensor([[1.0, 0.0]]), limit, alive=booleans("xx"), protected=booleans("x."))
    assert torch.equal(keep, booleans("xx"))


@settings(max_examples=200, deadline=None)
@given(case=decisions())
def test_hard_keep_invariants(case: tuple[Tensor, float, Tensor, Tensor]) -> None:
    scores, threshold, alive, protected = case
    keep = hard_keep(scores, threshold, alive=alive, protected=protected)
    assert not (keep & ~alive).any(), "a dead token returned"
    assert keep.any(dim=-1).all(), "a sequence became empty"
    assert keep[protected].all(), "a protected token was dropped"
    for row in range(len(scores)):
        wanted = alive[row] & ((scores[row] > threshold) | protected[row])
        if wanted.any():
            assert torch.equal(keep[row], wanted)
        else:
            assert keep[row].sum() == 1 and scores[row][keep[row]] == scores[row][alive[row]].max()
    again = hard_keep(scores, threshold, alive=keep, protected=protected)
    assert torch.equal(again, keep), "the same scores and threshold decide differently the second time"


# --- soft ------------------------------------------------------------------------------------------------------------


def test_soft_gate_by_hand() -> None:
    """Logit +1 and -1 of a temperature, a tie, a protected token, padding."""
    scores = torch.tensor([[1.5, 0.5, 1.0, 0.0, 5.0]], dtype=torch.float64)
    gate = soft_gate(scores, 1.0, temperature=0.5, alive=booleans("xxxx."), protected=booleans("...x."))
    e = math.e
    wanted = torch.tensor([[e / (1 + e), 1 / (1 + e), 0.5, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gate, wanted, atol=1e-15, rtol=0)


def test_soft_gate_gradients_by_hand() -> None:
    """At a tie the slope is 1/(4T) for the score and its negative for the threshold; none elsewhere."""
    scores = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    soft_gate(scores, threshold, temperature=0.1, alive=booleans("xx."), protected=booleans("x..")).sum().backward()
    assert scores.grad is not None and threshold.grad is not None
    torch.testing.assert_close(scores.grad, torch.tensor([[0.0, 2.5, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(threshold.grad, torch.tensor(-2.5, dtype=torch.float64))


def test_infinite_threshold_has_finite_gradients() -> None:
    scores = torch.tensor([[1.0, 1.0]], requires_grad=True)
    threshold = torch.tensor(math.inf, requires_grad=True)
    gate = soft_gate(scores, threshold, temperature=0.1, alive=booleans("xx"), protected=booleans("x."))
    assert gate.tolist() == [[1.0, 0.0]]
    gate.sum().backward()
    assert scores.grad is not None and scores.grad.tolist() == [[0.0, 0.0]]
    assert threshold.grad is not None and threshold.grad.item() == 0.0


@settings(max_examples=100, deadline=None)
@given(case=decisions())
def test_cold_soft_gate_is_the_hard_gate(case: tuple[Tensor, float, Tensor, Tensor]) -> None:
    scores, threshold, alive, protected = case
    gate = soft_gate(scores, threshold, temperature=1e-5, alive=alive, protected=protected)
    hard = alive & ((scores > threshold) | protected)
    tied = alive & (scores == threshold) & ~protected
    assert torch.equal(gate[~tied], hard[~tied].float())
    assert (gate[tied] == 0.5).all()


@settings(max_examples=100, deadline=None)
@given(case=decisions(), temperature=st.floats(0.01, 10.0))
def test_soft_gate_invariants(case: tuple[Tensor, float, Tensor, Tensor], temperature: float) -> None:
    scores, threshold, alive, protected = case
    gate = soft_gate(scores, threshold, temperature=temperature, alive=alive, protected=protected)
    assert ((gate >= 0) & (gate <= 1)).all()
    assert (gate[~alive] == 0).all() and (gate[protected] == 1).all()
    higher = soft_gate(scores, threshold + 0.5, temperature=temperature, alive=alive, protected=protected)
    assert (higher <= gate).all()


# --- ramps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layers", "final", "wanted"),
    [
        ("plain", 6, 0.6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        ("plain", 12, 1.2, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2]),
        ("late", 6, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ("late", 12, 0.9, [0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("late", 3, 0.9, [0.3, 0.6, 0.9]),
        ("late", 1, 0.7, [0.7]),
        ("plain", 1, 0.7, [0.7]),
        ("plain", 4, 0.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_ramp_by_hand(kind: str, layers: int, final: float, wanted: list[float]) -> None:
    assert ramp(kind, layers=layers, final=final, collapse_last=False) == pytest.approx(wanted, abs=1e-12)
    collapsed = ramp(kind, layers=layers, final=final, collapse_last=True)
    assert collapsed[-1] == math.inf
    assert collapsed[:-1] == pytest.approx(wanted[:-1], abs=1e-12)


@given(kind=st.sampled_from(["plain", "late"]), layers=st.integers(1, 48), final=st.floats(0, 100))
def test_ramp_rises_to_its_final_value(kind: str, layers: int, final: float) -> None:
    thresholds = ramp(kind, layers=layers, final=final, collapse_last=False)
    assert len(thresholds) == layers
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == pytest.approx(final)
    quiet = layers // 4 if kind == "late" else 0
    assert thresholds[:quiet] == [0.0] * quiet


# --- protection ------------------------------------------------------------------------------------------------------

SEPARATOR = 3
# [CLS] a b [SEP] c [SEP] pad, where the padding happens to hold separators as well; and a text without any separator.
IDS = torch.tensor([[2, 7, 8, 3, 9, 3, 3], [2, 7, 8, 9, 9, 9, 9]])
ALIVE = booleans("xxxxxx.", "xxx....")


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("none",), (".......", ".......")),
        (("first",), ("x......", "x......")),
        (("separators",), ("...x.x.", ".......")),
        (("first_segment",), ("xxxx...", "xxx....")),
        (("first", "separators"), ("x..x.x.", "x......")),
        (("separators", "first_segment"), ("xxxx.x.", "xxx....")),
        (("first", "separators", "first_segment"), ("xxxx.x.", "xxx....")),
    ],
)
def test_protected_tokens_by_hand(names: tuple[str, ...], wanted: tuple[str, str]) -> None:
    before = ALIVE.clone()
    found = protected_tokens(names, alive=ALIVE, input_ids=IDS, separator_id=SEPARATOR)
    assert torch.equal(found, booleans(*wanted))
    assert torch.equal(ALIVE, before), "the caller's mask was changed"


def test_roberta_style_double_separator_ends_the_first_segment_once() -> None:
    ids = torch.tensor([[0, 7, 2, 2, 8, 2]])
    alive = torch.ones_like(ids, dtype=torch.bool)
    found = protected_tokens(("first_segment",), alive=alive, input_ids=ids, separator_id=2)
    assert torch.equal(found, booleans("xxx..."))


@pytest.mark.parametrize("name", ["separators", "first_segment"])
@pytest.mark.parametrize(("ids", "separator"), [(None, 3), (IDS, None)])
def test_separators_need_ids(name: str, ids: Tensor | None, separator: int | None) -> None:
    with pytest.raises(ValueError, match="protecting separators needs input_ids and separator_id"):
        protected_tokens((name,), alive=ALIVE, input_ids=ids, separator_id=separator)


def test_first_needs_no_ids() -> None:
    found = protected_tokens(("first",), alive=ALIVE, input_ids=None, separator_id=None)
    assert torch.equal(found, booleans("x......", "x......"))


def test_without_a_rescue_nothing_changes_where_a_token_is_protected() -> None:
    torch.manual_seed(0)
    scores, alive = torch.rand(6, 9), torch.rand(6, 9) > 0.3
    alive[:, 0] = True
    protected = torch.zeros_like(alive)
    protected[:, 0] = True
    for threshold in (0.0, 0.4, math.inf):
        given = {"alive": alive, "protected": protected}
        assert torch.equal(hard_keep(scores, threshold, **given, rescue=False), hard_keep(scores, threshold, **given))


def test_shares_by_hand() -> None:
    assert falling_shares(3.0, 2.0, layers=6) == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0]
    assert falling_shares(3.0, 2.0, layers=6, collapse_last=False, floor=0.1) == [1.0, 1.0, 0.5, 0.1, 0.1, 0.1]
    assert falling_shares(3.5, 1.0, layers=6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert falling_shares(2.5, 5.0, layers=6) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])
    assert falling_shares(99.0, 4.0, layers=3) == [1.0, 1.0, 0.0], "the last layer keeps protected tokens only"
    assert falling_shares(2.5, 5.0, layers=5)[3] == pytest.approx(0.2)
    assert falling_shares(2.549, 5.1, layers=7)[4:] == [0.0, 0.0, 0.0], "less than 2% is nothing"


def test_a_threshold_leaves_a_share() -> None:
    """Three of four tokens are left, and a share of the four that there were is asked for."""
    scores = torch.tensor([0.5, 2.0, 1.0])
    found = threshold_leaving(0.25, scores, of=4)
    assert (scores > found).tolist() == [False, True, False]
    assert threshold_leaving(0.0, scores, of=4) == math.inf
    assert threshold_leaving(0.75, scores, of=4) == threshold_leaving(1.0, scores, of=4) == -1.0
    assert threshold_leaving(0.0, scores[:0], of=4) == math.inf
