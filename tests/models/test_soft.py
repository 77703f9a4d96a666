"""The soft stage on every family: gradients arrive, plain scales the output, and the cold limit is the hard model."""

import math

import pytest
import torch
from torch import Tensor

from tests.models.families import (
    FAMILIES,
    LAYERS,
    SOME,
    exact_attention,
    logits_of,
    pruned_model,
    ragged,
    run,
    stock_precision,
    tiny_model,
    trace_of,
)
from thresher.core.losses import keep_regulariser
from thresher.models.attach import gates_of

pytestmark = pytest.mark.parametrize("name", FAMILIES)


def close(name: str, ours: Tensor, stock: Tensor) -> None:
    torch.testing.assert_close(ours, stock, atol=max(1e-7, stock_precision(name)), rtol=1e-7)


@pytest.mark.parametrize("soft_mask", ["cumulative", "plain"])
@pytest.mark.parametrize("last", [1.0, math.inf])
def test_gradients_reach_thresholds_and_weights(name: str, soft_mask: str, last: float) -> None:
    """From the task alone. The last layer's threshold moves the logits only through what comes after it: nothing."""
    model = pruned_model(name, (*SOME[:-1], last)).train()
    gates = gates_of(model)
    gates.set_mode("soft", soft_mask=soft_mask)
    labels = torch.tensor([0, 1, 2, 0, 1])
    torch.nn.functional.cross_entropy(model(**ragged(model)).logits, labels).backward()
    assert gates.thresholds.grad is not None
    assert gates.thresholds.grad.isfinite().all()
    assert (gates.thresholds.grad[:-1] != 0).all()
    assert gates.thresholds.grad[-1] == 0, "the first token is protected and the only one read after the last layer"
    for path, parameter in model.named_parameters():
        if parameter.grad is None:
            assert "pooler" in path, f"{path} got no gradient"
        else:
            assert parameter.grad.isfinite().all(), path
    weights = [p for path, p in model.named_parameters() if path.endswith("weight") and "encoder" in path]
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)


@pytest.mark.parametrize("soft_mask", ["cumulative", "plain"])
def test_the_regulariser_raises_thresholds(name: str, soft_mask: str) -> None:
    model = pruned_model(name)
    gates_of(model).set_mode("soft", soft_mask=soft_mask)
    model(**ragged(model))
    trace = trace_of(model)
    keep_regulariser(trace.gates, alive=trace.alive[0], protected=trace.protected).backward()
    gradient = gates_of(model).thresholds.grad
    assert gradient is not None and gradient[-1] < 0, "a step against the gradient keeps fewer tokens"


def test_plain_multiplies_the_output(name: str) -> None:
    """First layer: the stock layer's output times the gate; first tokens untouched, padding exactly zero."""
    model = tiny_model(name, attention=exact_attention(name))
    inputs = ragged(model)
    soft = pruned_model(name)
    gates_of(soft).set_mode("soft", soft_mask="plain")
    with torch.no_grad():
        stock = model(**inputs, output_hidden_states=True).hidden_states
        ours = soft(**inputs, output_hidden_states=True).hidden_states
    trace = trace_of(soft)
    live = inputs["attention_mask"].bool()
    gate = torch.sigmoid((trace.scores[0] - torch.tensor(SOME[0])) / gates_of(soft).temperature)
    gate[:, 0] = 1.0
    gate[~live] = 0.0
    torch.testing.assert_close(trace.gates[0], gate)
    close(name, ours[1][live], (stock[1] * gate[..., None])[live])
    assert (ours[1][~live] == 0).all()
    assert ((gate > 0.1) & (gate < 0.9)).any()


def test_cumulative_leaves_the_output_alone_and_fades_the_keys(name: str) -> None:
    model = tiny_model(name, attention=exact_attention(name))
    inputs = ragged(model)
    soft = pruned_model(name)
    gates_of(soft).set_mode("soft", soft_mask="cumulative")
    with torch.no_grad():
        stock = model(**inputs, output_hidden_states=True).hidden_states
        ours = soft(**inputs, output_hidden_states=True).hidden_states
    live, trace = inputs["attention_mask"].bool(), trace_of(soft)
    close(name, ours[1][live], stock[1][live])
    assert (ours[2][live] - stock[2][live]).abs().max() > 1e-4
    product = live.double()
    for layer in range(LAYERS):
        product = product * trace.gates[layer]
        torch.testing.assert_close(trace.alive[layer + 1], product)
        assert (product[:, 0] == 1).all() and (product[~live] == 0).all()


@pytest.mark.parametrize(("score", "score_queries"), [("attention", 1), ("attention", 3), ("value", 2)])
def test_cold_cumulative_gates_are_the_hard_model(name: str, score: str, score_queries: int) -> None:
    """Training approaches what inference computes: at temperature zero, same logits and same decisions."""
    model = pruned_model(name, score=score, score_queries=score_queries)
    inputs = ragged(model)
    hard, trace = run(model, inputs)
    gates_of(model).set_mode("soft", soft_mask="cumulative")
    gates_of(model).temperature = 1e-9
    soft, cold = run(model, inputs)
    torch.testing.assert_close(soft, hard, atol=1e-10, rtol=0)
    for layer in range(LAYERS + 1):
        assert torch.equal(cold.alive[layer].double(), trace.alive[layer].double())


def test_soft_gates_do_not_depend_on_padding(name: str) -> None:
    model = pruned_model(name)
    for soft_mask in ("cumulative", "plain"):
        gates_of(model).set_mode("soft", soft_mask=soft_mask)
        narrow, wide = ragged(model), ragged(model, extra=6)
        torch.testing.assert_close(logits_of(model, narrow), logits_of(model, wide), atol=1e-11, rtol=0)
        width = narrow["input_ids"].shape[1]
        _, trace = run(model, wide)
        gates = [gate.clone() for gate in trace.gates]
        _, trace = run(model, narrow)
        for ours, theirs in zip(trace.gates, gates, strict=True):
            torch.testing.assert_close(ours, theirs[:, :width], atol=1e-11, rtol=0)
            assert (theirs[:, width:] == 0).all()
