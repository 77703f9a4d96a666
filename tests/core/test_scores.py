"""Scores and attention over live keys: hand-sized cases first, then the invariants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thresher.core.scores import (
    at_least_float32,
    attention_probabilities,
    counted_queries,
    queries_in_words,
    relative_scores,
    scores_in,
    value_scores,
)

DOUBLE = torch.float64


def exact(ours: Tensor, wanted: list[object], *, atol: float = 1e-15) -> None:
    torch.testing.assert_close(ours, torch.tensor(wanted, dtype=ours.dtype), atol=atol, rtol=0)


@st.composite
def attention(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits (batch, heads, tokens, tokens) and a right-padded mask (batch, tokens) with at least one live token."""
    batch, heads, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    lengths = draw(st.lists(st.integers(1, tokens), min_size=batch, max_size=batch))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([0.1, 1.0, 30.0]))
    logits = torch.randn(batch, heads, tokens, tokens, generator=generator, dtype=DOUBLE) * size
    return logits, torch.arange(tokens)[None] < torch.tensor(lengths)[:, None]


# --- attention probabilities -----------------------------------------------------------------------------------------


def test_probabilities_by_hand() -> None:
    logits = torch.tensor([[[[0.0, math.log(3.0), 9.0]]]], dtype=DOUBLE)
    alive = torch.tensor([[True, True, False]])
    exact(attention_probabilities(logits, alive), [[[[0.25, 0.75, 0.0]]]])


def test_half_alive_key_gets_half_the_weight() -> None:
    logits = torch.tensor([[[[0.0, 0.0, 5.0]]]], dtype=DOUBLE)
    exact(attention_probabilities(logits, torch.tensor([[1.0, 0.5, 0.0]])), [[[[2 / 3, 1 / 3, 0.0]]]])


@pytest.mark.parametrize("dead", [False, 0.0])
def test_dead_keys_get_exactly_nothing_even_with_huge_logits(dead: bool | float) -> None:
    logits = torch.tensor([[[[0.0, 1e4, 0.0, 3e38], [2.0, 1e4, -1e4, 1e4]]]], requires_grad=True)
    alive = torch.tensor([[type(dead)(1), dead, type(dead)(1), dead]])
    found = attention_probabilities(logits, alive)
    assert found.isfinite().all()
    assert (found[..., [1, 3]] == 0).all()
    exact(found.detach()[0, 0], [[0.5, 0, 0.5, 0], [1, 0, 0, 0]], atol=1e-7)
    (found * torch.arange(4.0)).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert (logits.grad[..., [1, 3]] == 0).all()


@pytest.mark.parametrize("dead", [False, 0.0])
def test_dead_keys_get_nothing_when_live_logits_are_hugely_negative(dead: bool | float) -> None:
    """Any finite mask value would lose to live logits below it."""
    alive = torch.tensor([[type(dead)(1), type(dead)(1), dead]])
    found = attention_probabilities(torch.tensor([[[[-1e30, -1e30, 0.0]]]]), alive)
    assert found.tolist() == [[[[0.5, 0.5, 0.0]]]]


def test_extreme_live_logits() -> None:
    logits = torch.tensor([[[[1e4, -1e4, 0.0]]]])
    for alive in (torch.tensor([[True] * 3]), torch.tensor([[1.0] * 3]), torch.tensor([[1e-30, 1.0, 1.0]])):
        exact(attention_probabilities(logits, alive), [[[[1.0, 0.0, 0.0]]]])


def test_gradients_of_the_weights_by_hand() -> None:
    """p_0 = w_0 / (w_0 + w_1) at equal logits: dp_0/dw_1 = -1/4 at (1, 1), and finite at w_1 = 0: -1."""
    logits = torch.zeros(1, 1, 1, 2, dtype=DOUBLE)
    for weights, gradient in (([1.0, 1.0], [0.25, -0.25]), ([1.0, 0.0], [0.0, -1.0])):
        alive = torch.tensor([weights], dtype=DOUBLE, requires_grad=True)
        attention_probabilities(logits, alive)[..., 0].sum().backward()
        assert alive.grad is not None
        exact(alive.grad, [gradient])


def test_gradient_of_weighted_attention_matches_finite_differences() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 2, 3, 3, dtype=DOUBLE, requires_grad=True)
    alive = (torch.rand(2, 3, dtype=DOUBLE) * 0.8 + 0.1).requires_grad_(True)
    assert torch.autograd.gradcheck(attention_probabilities, (logits, alive))


@settings(max_examples=60, deadline=None)
@given(case=attention())
def test_boolean_mask_equals_weights_of_zero_and_one(case: tuple[Tensor, Tensor]) -> None:
    logits, alive = case
    boolean, weighted = attention_probabilities(logits, alive), attention_probabilities(logits, alive.double())
    torch.testing.assert_close(boolean, weighted, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(boolean.sum(dim=-1), torch.ones(boolean.shape[:-1], dtype=DOUBLE))
    for found in (boolean, weighted):
        assert (found.transpose(1, 3)[~alive] == 0).all()


@settings(max_examples=60, deadline=None)
@given(case=attention(), seed=st.integers(0, 1000))
def test_weights_add_their_logarithm_to_the_logits(case: tuple[Tensor, Tensor], seed: int) -> None:
    """The definition by other means: softmax(logits + log(weight))."""
    logits, alive = case
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(alive.shape, generator=generator, dtype=DOUBLE).clamp(min=1e-3) * alive
    wanted = torch.softmax(logits + weight.log()[:, None, None, :], dim=-1)
    torch.testing.assert_close(attention_probabilities(logits, weight), wanted, atol=1e-12, rtol=1e-9)


def test_everything_is_at_least_float32() -> None:
    assert at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert at_least_float32(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert at_least_float32(torch.zeros(1, dtype=DOUBLE)).dtype == DOUBLE
    for alive in (torch.tensor([[True, True]]), torch.tensor([[1.0, 0.5]], dtype=torch.bfloat16)):
        found = attention_probabilities(torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16), alive)
        assert found.dtype == torch.float32
        assert relative_scores(found, alive).dtype == torch.float32


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_by_hand() -> None:
    """Two heads, three tokens, the last one dead: its row must not count, whatever it attends to."""
    probabilities = torch.tensor(
        [[[[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]]
    )
    alive = torch.tensor([[True, True, False]])
    relative = relative_scores(probabilities, alive)
    # Token 0: (0.5 + 0.25 + 1.0 + 0.5) / 2 heads; token 1: (0.5 + 0.75 + 0.0 + 0.5) / 2.
    exact(relative, [[1.125, 0.875, 0.0]])
    exact(scores_in("paper", relative, alive), [[0.5625, 0.4375, 0.0]])
    assert torch.equal(scores_in("relative", relative, alive), relative)


def test_uniform_attention_scores_exactly_one() -> None:
    for tokens in (1, 2, 4, 8):
        alive = torch.ones(1, tokens, dtype=torch.bool)
        probabilities = attention_probabilities(torch.zeros(1, 2, tokens, tokens), alive)
        exact(relative_scores(probabilities, alive), [[1.0] * tokens], atol=0)


def test_fading_queries_count_by_their_weight() -> None:
    probabilities = torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]])
    alive = torch.tensor([[1.0, 0.5]])
    relative = relative_scores(probabilities, alive)
    exact(relative, [[0.5, 1.0]])
    exact(scores_in("paper", relative, alive), [[1 / 3, 2 / 3]], atol=1e-7)


@settings(max_examples=100, deadline=None)
@given(case=attention())
def test_mean_relative_score_of_live_tokens_is_one(case: tuple[Tensor, Tensor]) -> None:
    logits, alive = case
    relative = relative_scores(attention_probabilities(logits, alive), alive)
    lengths = alive.sum(dim=-1).double()
    exact(relative.sum(dim=-1) / lengths, [1.0] * len(alive), atol=1e-13)
    assert (relative[~alive] == 0).all()
    paper = scores_in("paper", relative, alive)
    torch.testing.assert_close(paper * lengths[:, None], relative)
    exact(paper.sum(dim=-1), [1.0] * len(alive), atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(case=attention(), extra=st.integers(0, 5))
def test_padding_changes_nothing(case: tuple[Tensor, Tensor], extra: int) -> None:
    """A sequence alone and the same sequence with anything at all in the padding have the same scores."""
    logits, alive = case
    padded = torch.nn.functional.pad(logits, (0, extra, 0, extra), value=777.0)
    wider = torch.nn.functional.pad(alive, (0, extra))
    together = relative_scores(attention_probabilities(padded, wider), wider)
    for row, length in enumerate(alive.sum(dim=-1).tolist()):
        one = slice(row, row + 1)
        live = torch.ones(1, length, dtype=torch.bool)
        alone = relative_scores(attention_probabilities(logits[one, :, :length, :length], live), live)
        for scale in ("relative", "paper"):
            torch.testing.assert_close(
                scores_in(scale, together[one], wider[one])[:, :length], scores_in(scale, alone, live)
            )


# --- value scores ----------------------------------------------------------------------------------------------------


def test_value_scores_by_hand() -> None:
    """Two heads, two live tokens: received (1.5, 0.5) times (1, 2), and (1, 1) times (0, 3): 1.5 and 4, mean 2.75."""
    probabilities = torch.tensor([[[[0.75, 0.25], [0.75, 0.25]], [[0.5, 0.5], [0.5, 0.5]]]], dtype=DOUBLE)
    lengths = torch.tensor([[[1.0, 2.0], [0.0, 3.0]]], dtype=DOUBLE)
    exact(value_scores(probabilities, torch.tensor([[True, True]]), lengths), [[1.5 / 2.75, 4 / 2.75]])


def test_a_fading_key_has_the_value_score_that_it_would_have_in_full() -> None:
    """Two keys that are alike but for one's fading: it gets half of the attention and the same score."""
    alive = torch.tensor([[1.0, 0.5]], dtype=DOUBLE)
    probabilities = attention_probabilities(torch.zeros(1, 1, 2, 2, dtype=DOUBLE), alive)
    exact(value_scores(probabilities, alive, torch.ones(1, 1, 2, dtype=DOUBLE)), [[1.0, 1.0]])


@given(attention())
def test_equal_values_give_attention_scores(case: tuple[Tensor, Tensor]) -> None:
    logits, alive = case
    probabilities = attention_probabilities(logits, alive)
    lengths = torch.full(probabilities.shape[:2] + probabilities.shape[3:], 0.7, dtype=DOUBLE)
    torch.testing.assert_close(value_scores(probabilities, alive, lengths), relative_scores(probabilities, alive))


@given(attention(), st.integers(0, 2**32 - 1))
def test_value_scores_are_one_on_average_and_padding_changes_nothing(case: tuple[Tensor, Tensor], seed: int) -> None:
    logits, alive = case
    lengths = torch.rand(logits.shape[0], logits.shape[1], logits.shape[3], dtype=DOUBLE) + 0.1
    scores = value_scores(attention_probabilities(logits, alive), alive, lengths)
    means = (scores * alive).sum(dim=-1) / alive.sum(dim=-1)
    torch.testing.assert_close(means, torch.ones_like(means))
    for row, length in enumerate(alive.sum(dim=-1).tolist()):
        own = logits[row : row + 1, :, :length, :length]
        whole = torch.ones(1, length, dtype=torch.bool)
        alone = value_scores(attention_probabilities(own, whole), whole, lengths[row : row + 1, :, :length])
        torch.testing.assert_close(scores[row, :length], alone[0])


# --- queries that stand for all --------------------------------------------------------------------------------------


def test_which_queries_count() -> None:
    places = torch.tensor([[0, 1, 3, 4, 8, 9]])
    assert counted_queries(places, 1) is None
    for score_queries, wanted in ((0, [0]), (2, [0, 4, 8]), (4, [0, 4, 8]), (8, [0, 8]), (100, [0])):
        counted = counted_queries(places, score_queries)
        assert counted is not None and places[counted].tolist() == wanted
    assert [queries_in_words(k) for k in (0, 1, 8)] == ["the first token", "all tokens", "one token in 8"]


def test_one_query_stands_for_three_by_hand() -> None:
    """The first gives 1/2, 1/4 and 1/4 of its attention: times three. The values there are 1, 4 and 0 long."""
    row = [0.5, 0.25, 0.25, 0.0]
    probabilities = torch.tensor([[[row, [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.7, 0.0], row]]], dtype=DOUBLE)
    alive, first = torch.tensor([[True, True, True, False]]), torch.tensor([[True, False, False, False]])
    exact(relative_scores(probabilities, alive, first), [[1.5, 0.75, 0.75, 0.0]])
    lengths = torch.tensor([[[1.0, 4.0, 0.0, 9.0]]], dtype=DOUBLE)
    exact(value_scores(probabilities, alive, lengths, first), [[1.0, 2.0, 0.0, 0.0]])


@given(attention(), st.integers(0, 9))
def test_the_mean_stays_one_whoever_counts(case: tuple[Tensor, Tensor], score_queries: int) -> None:
    """Also where keys fade, judged by what they would get in full; and the same alone as with padding."""
    logits, alive = case
    counted = counted_queries(torch.arange(alive.shape[1])[None], score_queries)
    for live in (alive, alive / (1.0 + torch.arange(alive.shape[1], dtype=DOUBLE))):
        probabilities = attention_probabilities(logits, live)
        by_attention = relative_scores(probabilities, live, counted)
        means = by_attention.sum(dim=-1) / live.sum(dim=-1)
        torch.testing.assert_close(means, torch.ones_like(means, dtype=DOUBLE))
        by_value = value_scores(probabilities, live, torch.ones(1, 1, 1, dtype=DOUBLE), counted)
        in_full = by_attention / live.clamp(min=1e-6) if live.is_floating_point() else by_attention
        shown = in_full / ((in_full * live).sum(dim=-1, keepdim=True) / live.sum(dim=-1, keepdim=True))
        torch.testing.assert_close(by_value, shown)


def test_gradients_pass_through_the_queries_that_count_alone() -> None:
    logits = torch.randn(1, 2, 5, 5, dtype=DOUBLE, requires_grad=True)
    alive = torch.tensor([[1.0, 0.5, 0.9, 0.2, 1.0]], dtype=DOUBLE)
    counted = counted_queries(torch.arange(5)[None], 4)
    scores = relative_scores(attention_probabilities(logits, alive), alive, counted)
    scores.square().sum().backward()
    assert logits.grad is not None
    given = logits.grad.abs().sum(dim=(0, 1, 3))
    assert (given[[0, 4]] > 0).all() and (given[[1, 2, 3]] == 0).all()
