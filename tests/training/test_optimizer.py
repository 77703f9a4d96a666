"""Which parameter learns how fast, and which decays."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.training.tiny import gated_model, quick
from thresher.models.attach import gates_of
from thresher.training.optimizer import make_optimizer


def names_in(model: nn.Module, group: dict[str, Any]) -> set[str]:
    chosen = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_matrices_decay_and_biases_and_norms_do_not(name: str) -> None:
    model = gated_model(name)
    optimizer = make_optimizer(model, quick(weight_decay=0.3), lr=0.01, learn_thresholds=False)
    decaying, plain = (names_in(model, group) for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]
    assert all(known.endswith("bias") or "norm" in known.lower() for known in plain)
    assert not any("norm" in known.lower() or known.endswith(".bias") for known in decaying)
    everything = {known for known, _ in model.named_parameters()}
    left_out = {known for known in everything if known.endswith(("word_embeddings.weight", "thresholds"))}
    assert len(left_out) == 2
    assert decaying | plain == everything - left_out
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(everything) - 2


def test_thresholds_have_their_own_rate_and_never_decay() -> None:
    model = gated_model()
    gates_of(model).set_mode("soft")
    optimizer = make_optimizer(model, quick(threshold_lr=0.5, weight_decay=0.3), lr=0.01, learn_thresholds=True)
    *weights, thresholds = optimizer.param_groups
    assert len(weights) == 2 and len(thresholds["params"]) == 1
    assert thresholds["params"][0] is gates_of(model).thresholds
    assert (thresholds["lr"], thresholds["weight_decay"]) == (0.5, 0.0)


@pytest.mark.parametrize("mode", ["off", "soft", "hard"])
def test_without_learning_thresholds_are_in_no_group(mode: str) -> None:
    """Even where they happen to want a gradient: they must not decay among the weights."""
    model = gated_model()
    gates_of(model).set_mode(mode)
    optimizer = make_optimizer(model, quick(), lr=0.01, learn_thresholds=False)
    chosen = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert id(gates_of(model).thresholds) not in chosen


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_word_embeddings_learn_only_when_asked(name: str, freeze: bool) -> None:
    model = gated_model(name)
    embeddings = model.get_input_embeddings().weight
    embeddings.requires_grad_(freeze)  # whatever a stage before left
    optimizer = make_optimizer(model, quick(freeze_embeddings=freeze), lr=0.01, learn_thresholds=False)
    chosen = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert (id(embeddings) in chosen) is not freeze
    assert embeddings.requires_grad is not freeze


def test_an_optimizer_step_moves_what_it_should_and_nothing_else() -> None:
    model = gated_model(dropout=0.0)
    gates_of(model).set_mode("soft")
    optimizer = make_optimizer(model, quick(freeze_embeddings=True), lr=0.01, learn_thresholds=True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model(input_ids=torch.tensor([[2, 5, 9, 10, 3]]), attention_mask=torch.ones(1, 5, dtype=torch.long)).logits[
        0, 0
    ].backward()
    optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert still == {"bert.embeddings.word_embeddings.weight"}
    assert gates_of(model).thresholds[3] == float("inf")
