"""Rules instead of thresholds: hand-sized decisions, what holds for all of them, and their way to JSON and back."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thresher.config import PruneConfig
from thresher.errors import ConfigError, ModelError
from thresher.models.gating import Gates
from thresher.models.rules import Rule, TopCount, TopShare, rule_from


def gates_with(rule: Rule, layers: int, *, protect: tuple[str, ...] = ("first",)) -> Gates:
    gates = Gates(PruneConfig(collapse_last=False, protect=protect), [9.0] * layers)  # thresholds that would drop all
    gates.rule = rule
    gates.set_mode("hard")
    return gates


def towards(*weights: float) -> Tensor:
    """Logits with which every query gives key k a share proportional to weights[k]."""
    return torch.tensor(weights).log().expand(1, 1, len(weights), len(weights))


def decided(gates: Gates, logits: Tensor) -> None:
    """One layer, all of whose value vectors are the same."""
    gates.decide(gates.probabilities(logits), torch.ones(*logits.shape[:2], logits.shape[-1], 2))


def decide(gates: Gates, *layers: tuple[float, ...], ids: list[int] | None = None) -> list[list[bool]]:
    tokens = len(layers[0])
    gates.begin(torch.ones(1, tokens), None if ids is None else torch.tensor([ids]))
    for weights in layers:
        decided(gates, towards(*weights))
    gates.end()
    assert gates.trace is not None
    return [alive[0].tolist() for alive in gates.trace.alive[1:]]


def kept(*rows: str) -> list[list[bool]]:
    return [[letter == "x" for letter in row] for row in rows]


def test_share_of_the_original_length_by_the_layers_own_score() -> None:
    """Four of five, then round(0.5 * 5) = 2 (to even) of five, not of four."""
    gates = gates_with(TopShare([0.8, 0.5]), 2)
    assert decide(gates, (1, 5, 2, 4, 3), (1, 2, 9, 5, 3)) == kept("xx.xx", "x..x.")


def test_shares_are_rounded_to_the_nearest_number() -> None:
    """0.75 of three is 2.25, of five 3.75."""
    assert TopShare([0.75]).counts_for(0, torch.tensor([3, 5])).tolist() == [2, 4]


def test_shares_below_one_token_keep_one() -> None:
    assert decide(gates_with(TopShare([0.0, -1.0]), 2, protect=("none",)), (1, 5, 2), (1, 5, 2)) == kept(".x.", ".x.")


def test_cumulative_scores_remember_the_layers_before() -> None:
    """Token 1 leads in the first layer by more than token 2 does in the second."""
    layers = ((1, 12, 2, 1), (1, 2, 4, 1))
    assert decide(gates_with(TopShare([1.0, 0.5], order="score"), 2), *layers)[1] == kept("x.x.")[0]
    assert decide(gates_with(TopShare([1.0, 0.5], order="cumulative"), 2), *layers)[1] == kept("xx..")[0]


def test_counts_are_the_same_for_every_length() -> None:
    assert decide(gates_with(TopCount([4, 2]), 2), (1, 5, 2, 4, 3), (1, 2, 9, 5, 3)) == kept("xx.xx", "x..x.")
    assert decide(gates_with(TopCount([4, 2]), 2), (1, 5), (1, 2)) == kept("xx", "xx")


def test_random_repeats_itself_and_ignores_scores() -> None:
    gates = gates_with(TopShare([0.5], order="random", seed=3), 1)
    first = decide(gates, tuple(range(1, 9)), ids=[3, 1, 4, 1, 5, 9, 2, 6])
    again = decide(gates, tuple(range(8, 0, -1)), ids=[3, 1, 4, 1, 5, 9, 2, 6])
    assert first == again and sum(first[0]) == 4 and first[0][0]
    others = {str(decide(gates, tuple(range(1, 9)), ids=[3, 1, 4, 1, 5, 9, 2, last])) for last in range(10)}
    assert len(others) > 3, "another text, another choice"


def test_random_needs_to_know_the_text() -> None:
    with pytest.raises(ModelError, match="needs input_ids"):
        decide(gates_with(TopShare([0.5], order="random"), 1), (1, 2))


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, int]:
    layers = draw(st.integers(1, 4))
    order = draw(st.sampled_from(("score", "cumulative", "random")))
    if draw(st.booleans()):
        shares = draw(st.lists(st.floats(-0.5, 1.0), min_size=layers, max_size=layers))
        return TopShare(shares, order=order), layers
    counts = draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))
    return TopCount(counts, order=order), layers


@given(rules(), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(0, 99))
def test_no_token_returns_protected_ones_stay_and_none_is_emptied(
    given_rule: tuple[Rule, int], lengths: list[int], seed: int
) -> None:
    rule, layers = given_rule
    gates = gates_with(rule, layers)
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(0, 50, mask.shape, generator=generator)
    gates.begin(mask, ids)
    for _ in range(layers):
        logits = torch.randn(len(lengths), 2, max(lengths), max(lengths), generator=generator)
        decided(gates, logits)
    trace = gates.trace
    assert trace is not None
    for before, after in zip(trace.alive, trace.alive[1:], strict=False):
        assert not bool((after & ~before).any())
        assert bool(after[:, 0].all())
    assert isinstance(rule, TopShare | TopCount)
    for layer in range(layers):
        assert bool((trace.kept()[:, layer] <= rule.counts_for(layer, trace.lengths()).clamp(min=1)).all())


def test_layers_left_out_drop_nothing_and_only_for_a_while() -> None:
    gates = gates_with(TopCount([2, 1]), 2)
    given, made = torch.zeros(1, 3, 4), torch.ones(1, 3, 4)
    with gates.leaving_out(torch.tensor([True, False])):
        gates.begin(torch.ones(1, 3), None)
        decided(gates, towards(1, 2, 3))
        assert torch.equal(gates.passed_on(given, made), given)
        decided(gates, towards(1, 2, 3))
        assert torch.equal(gates.passed_on(given, made), made)
    assert gates.trace is not None and gates.trace.kept().tolist() == [[3, 1]]
    gates.begin(torch.ones(1, 3), None)
    decided(gates, towards(1, 2, 3))
    assert torch.equal(gates.passed_on(given, made), made)


def test_other_counts_for_a_while() -> None:
    rule = TopCount([5, 4])
    with pytest.raises(KeyError), rule.trying([2, 1]):
        assert rule.counts.tolist() == [2, 1]
        raise KeyError
    assert rule.counts.tolist() == [5, 4]


def test_rules_have_no_soft_form_of_their_own() -> None:
    gates = gates_with(TopCount([2]), 1)
    gates.set_mode("soft")
    gates.begin(torch.ones(1, 2), None)
    with pytest.raises(ModelError, match="rule 'top_count' has no soft form"):
        decided(gates, towards(1, 2))
    assert not gates.thresholds.requires_grad, "thresholds that decide nothing learn nothing"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_leaves_the_shares_alone(dtype: torch.dtype) -> None:
    """0.35 of 90, 170 and 330 tokens lie half between two numbers: in float32 they are rounded the other way."""
    rule, lengths = TopShare([1.0, 0.35]), torch.tensor([90, 170, 330])
    before = rule.counts_for(1, lengths).tolist()
    gates = gates_with(rule, 2).to(dtype)
    assert rule.shares.tolist() == [1.0, 0.35]
    assert rule.counts_for(1, lengths).tolist() == before
    assert gates.thresholds.dtype == torch.float32


# --- saved rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [TopShare([1.0, 1 / 3], order="cumulative"), TopShare([1.0, 0.5], order="random", seed=7), TopCount([9, 2])]
)
def test_there_and_back(rule: Rule) -> None:
    again = rule_from(rule.to_dict(), layers=2)
    assert type(again) is type(rule) and again.to_dict() == rule.to_dict()


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (None, "rule None is not one of: top_share, top_count"),
        ({"name": "bottom"}, "rule 'bottom' is not one of: top_share, top_count"),
        ({"name": ["top_count"]}, "rule ['top_count'] is not one of"),
        ({"name": "top_share"}, "rule 'top_share' needs a list 'shares' of 2 numbers, one per layer"),
        ({"name": "top_share", "shares": [1.0]}, "rule 'top_share' needs a list 'shares' of 2 numbers"),
        ({"name": "top_share", "shares": [1.0, "x"]}, "rule 'top_share' needs a list 'shares' of 2 numbers"),
        ({"name": "top_count", "counts": [3, 0]}, "rule 'top_count' needs a list 'counts' of 2 numbers"),
        ({"name": "top_count", "counts": [3, 1.5]}, "rule 'top_count' needs a list 'counts' of 2 numbers"),
        ({"name": "top_count", "counts": [3, 1], "order": "size"}, "order = 'size' is not one of: score, cumulative"),
        ({"name": "top_count", "counts": [3, 1], "seed": "a"}, "rule 'top_count' has seed = 'a'"),
    ],
)
def test_damaged_rules_are_refused(saved: Any, text: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(text)):
        rule_from(saved, layers=2)
