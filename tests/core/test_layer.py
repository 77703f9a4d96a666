"""The order of a layer's parts, and the refusal of what an executor does not know."""

from collections.abc import Callable

import pytest
import torch

from thresher.core.layer import BERT_LIKE, GATED, LayerSpec, Steps, attention_input, check_features, finish
from thresher.core.places import in_window, rotated, turns
from thresher.core.scores import attention_probabilities
from thresher.errors import ModelError

PLAIN = LayerSpec(heads=2, width=8, ffn_width=16, activation=torch.relu)
PRE = LayerSpec(heads=2, width=8, ffn_width=16, activation=torch.relu, pre_norm=True)


def words() -> Steps[str]:
    """Steps that write down what is done."""

    def step(name: str) -> Callable[[str], str]:
        return lambda value: f"{name}({value})"

    return Steps(
        output=step("out"),
        norms=(step("norm1"), step("norm2")),
        feed_forward=step("ffn"),
        add=lambda values, residual: f"{values} + {residual}",
    )


def test_post_norm() -> None:
    assert attention_input(PLAIN, words(), "h") == "h"
    first = "norm1(out(c) + h)"
    assert finish(PLAIN, words(), "c", "h") == f"norm2(ffn({first}) + {first})"


def test_pre_norm() -> None:
    assert attention_input(PRE, words(), "h") == "norm1(h)"
    assert finish(PRE, words(), "c", "h") == "ffn(norm2(out(c) + h)) + out(c) + h"


def test_what_is_not_known_is_refused_by_name() -> None:
    check_features([PLAIN], BERT_LIKE, who="this", instead="no")
    odd = LayerSpec(
        heads=2, width=8, ffn_width=16, activation=torch.relu, gated=True, positions="rotary", rotary_base=1e4, window=3
    )
    with pytest.raises(ModelError) as caught:
        check_features([PLAIN, odd], BERT_LIKE | {GATED}, who="the test", instead="take another")
    assert str(caught.value) == (
        "the test cannot compute layers with attention windows and rotary positions yet; take another"
    )


def test_rotation_depends_on_distance_alone_and_keeps_lengths() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 8, dtype=torch.float64)

    def product(at: int, of: int) -> float:
        places = [turns(torch.tensor([place]), base=1000.0, width=8) for place in (at, of)]
        return float((rotated(query, *places[0]) * rotated(key, *places[1])).sum())

    assert product(3, 10) == pytest.approx(product(503, 510), abs=1e-4)
    assert product(3, 10) != pytest.approx(product(3, 11), abs=1e-3)
    turned = rotated(query, *turns(torch.tensor([77]), base=1000.0, width=8))
    torch.testing.assert_close(turned.norm(), query.norm(), atol=1e-6, rtol=0)


def test_windows_go_by_positions_and_dead_queries_stay_numbers() -> None:
    spec = LayerSpec(heads=1, width=4, ffn_width=4, activation=torch.relu, window=2)
    places = torch.tensor([[0, 2, 5, 7]])
    inside = in_window(spec, places, places)
    assert inside is not None
    wanted = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert inside[0, 0].int().tolist() == wanted
    for alive in (torch.tensor([[True, True, False, False]]), torch.tensor([[1.0, 0.5, 0.0, 0.0]])):
        found = attention_probabilities(torch.zeros(1, 1, 4, 4), alive, inside)
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(1, 1, 4))
        assert found[0, 0, 0, 2:].tolist() == [0, 0] and found[0, 0, 2].tolist() == [0, 0, 1, 0]
