"""Attention whose scores are computed apart from it gives what attention with its own scores gives."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import FAMILIES, HEADS, LAYERS, prune_with_, pruned_model, ragged, run, tiny_model
from thresher.models import attention
from thresher.models.attach import gates_of


def apart(spec: Any, *states: Tensor, gates: Any, bias: Any, relative: Any, dropout: float) -> Any:
    assert relative is None
    return attention.scored_apart(spec, *states, gates=gates, bias=bias, dropout=dropout), None


def results(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """Logits, trace and gradients."""
    model.zero_grad()
    logits = model(**inputs).logits
    logits.square().sum().backward()
    trace = gates_of(model).trace
    return logits.detach(), trace, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("score_queries", [1, 3])
@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "deberta-v2"])  # which has distances' products
def test_scores_apart_give_the_same(
    name: str, shorter: bool, score: str, score_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pruned_model(name, score=score, score_queries=score_queries)
    inputs = ragged(model)
    with gates_of(model).shortening(shorter):
        wanted, whole, theirs = results(model, inputs)
        monkeypatch.setattr("thresher.models.attach.attention", apart)
        found, trace, ours = results(model, inputs)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)
    for one, other in zip(trace.alive, whole.alive, strict=True):
        assert torch.equal(one, other)
    assert any(not alive.equal(trace.alive[0]) for alive in trace.alive), "something is dropped"
    assert ours.keys() == theirs.keys()
    for weight in ours:
        torch.testing.assert_close(ours[weight], theirs[weight], atol=1e-10, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_half_precision_decides_as_with_scores_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores come from the same queries and keys until a layer's context differs in its last digit."""
    model = pruned_model(name).to("cuda", torch.bfloat16)
    inputs = {key: value.cuda() for key, value in ragged(model).items()}
    found, trace = run(model, inputs)

    def whole(spec: Any, *states: Tensor, gates: Any, bias: Any, relative: Any, dropout: float) -> Any:
        query, key, value = states
        probabilities = attention._probabilities(spec, query, key, gates=gates, bias=bias)
        multiplier = gates.decide(probabilities, value)
        return probabilities.to(value.dtype) @ value, multiplier

    monkeypatch.setattr("thresher.models.attach.attention", whole)
    wanted, reference = run(model, inputs)
    assert torch.equal(trace.scores[0], reference.scores[0])
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)


def test_what_a_backward_pass_needs_of_each_layer() -> None:
    """docs/families.md says by this how long texts may be: of DeBERTa's attention, three float32 tensors of heads x
    tokens x tokens: before dropout, after it, and what it multiplied with."""
    tokens, kept = 48, dict[int, Tensor]()
    model = tiny_model("deberta-v2", dropout=0.1).float().train()
    prune_with_(model, (-math.inf,) * LAYERS)

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() == HEADS * tokens**2 and tensor.untyped_storage().nbytes() >= tensor.numel():
            kept[tensor.data_ptr()] = tensor  # held, so that no other one gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**ragged(model, (tokens,))).logits.sum().backward()
    # An index is one for all heads, in int64.
    sizes = [tensor.element_size() for tensor in kept.values() if tensor.is_floating_point()]
    assert sizes == [4] * 3 * LAYERS
