"""Attention whose scores are computed apart from it gives what attention with its own scores gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import FAMILIES, pruned_model, ragged, run
from thresher.models import attention
from thresher.models.attach import gates_of


def apart(spec: Any, *states: Tensor, gates: Any, bias: Any, relative: Any, dropout: float) -> Any:
    assert bias is None and relative is None
    return attention.scored_apart(spec, *states, gates=gates, dropout=dropout), None


def results(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """Logits, trace and gradients."""
    model.zero_grad()
    logits = model(**inputs).logits
    logits.square().sum().backward()
    trace = gates_of(model).trace
    return logits.detach(), trace, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if name not in ("mpnet", "deberta-v2")]
)  # these add to logits
def test_scores_apart_give_the_same(name: str, shorter: bool, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned_model(name, score=score)
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
