"""A pruned layer put together from the kernels, counts on the device throughout, is the reference backend's layer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.engine.kernels.cases import DEVICES, SCORES, SPARE, numbers, starts
from thresher.core.layer import LayerSpec
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import Reference
from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.first import attend_first
from thresher.engine.kernels.linear import linear, linear_in_parts
from thresher.engine.kernels.norm import add_norm
from thresher.engine.kernels.prune import prune
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, Layer, Norm

LENGTHS = [5, 70, 1, 33]
HEADS, WIDTH, INNER, THRESHOLD = 2, 32, 48, 0.9


def layer() -> Layer:
    def affine(outputs: int, inputs: int, seed: int) -> Affine:
        weight = numbers(outputs, inputs, dtype=torch.float32, device="cpu", seed=seed) / inputs**0.5 * 2
        return Affine(weight, numbers(outputs, dtype=torch.float32, device="cpu", seed=seed + 1))

    def norm(seed: int) -> Norm:
        weight, bias = (numbers(WIDTH, dtype=torch.float32, device="cpu", seed=seed + i) for i in range(2))
        return Norm(weight, bias, 1e-12)

    return Layer(
        spec=LayerSpec(heads=HEADS, width=WIDTH, ffn_width=INNER, activation=F.gelu),
        qkv=affine(3 * WIDTH, WIDTH, 10),
        attention_output=affine(WIDTH, WIDTH, 20),
        attention_norm=norm(30),
        ffn_in=affine(INNER, WIDTH, 40),
        ffn_out=affine(WIDTH, INNER, 50),
        output_norm=norm(60),
    )


class OneLayer:
    """As much of the weights as the reference backend's layer needs."""

    def __init__(self) -> None:
        self.layers = [layer()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
def test_a_pruned_layer_agrees_with_its_twin(score: str, device: str) -> None:
    reference: Any = Reference.__new__(Reference)
    reference.plan = PruningPlan(thresholds=(0.0,), score=score)
    reference.weights, reference.distance_bias = OneLayer(), None
    runs = Ragged.pack([torch.zeros(n) for n in LENGTHS])
    hidden = numbers(sum(LENGTHS) + SPARE, WIDTH, dtype=torch.float32, device="cpu", live=sum(LENGTHS))
    alive = hidden[: sum(LENGTHS)]
    protected = torch.zeros(len(hidden), dtype=torch.bool)
    protected[runs.first] = True

    context, scores = reference.attend(0, alive, runs, scored=True)
    # The same decisions on both sides: no score may lie where rounding decides.
    assert float((scores - THRESHOLD).abs().min()) > 1e-4
    kept_runs, rows = runs.compact((scores > THRESHOLD) | protected[: len(scores)])
    expected = reference.finish(0, context[rows], alive[rows])
    expected_first = reference.attend_first(0, expected, kept_runs)

    def place(affine: Affine) -> tuple[torch.Tensor, torch.Tensor]:
        return affine.weight.to(device), affine.bias.to(device)

    given, cu_seqlens, longest = layer(), starts(LENGTHS, device), max(LENGTHS)
    positions = torch.cat([torch.arange(n) for n in [*LENGTHS, SPARE]]).int().to(device)
    hidden = hidden.to(device)
    qkv = linear(hidden, *place(given.qkv), count=cu_seqlens[-1:])
    found_context, received = attention(qkv, cu_seqlens, heads=HEADS, max_length=longest, score=score)
    assert received is not None
    kept = prune(
        received, cu_seqlens, positions, protected.to(device), threshold=THRESHOLD, max_length=longest, score=score
    )
    count = kept.cu_seqlens[-1:]
    projected = linear(found_context, *place(given.attention_output), rows=kept.rows, count=count)
    norm, final = given.attention_norm, given.output_norm
    attended = add_norm(
        projected,
        hidden,
        norm.weight.to(device),
        norm.bias.to(device),
        epsilon=norm.epsilon,
        rows=kept.rows,
        count=count,
    )
    inner = linear(attended, *place(given.ffn_in), activation="gelu", count=count)
    weight, offset = place(given.ffn_out)
    out = linear_in_parts(inner, weight, parts=2, count=count)
    found = add_norm(
        out, attended, final.weight.to(device), final.bias.to(device), epsilon=final.epsilon, offset=offset, count=count
    )

    assert kept.cu_seqlens.tolist() == kept_runs.cu_seqlens.tolist()
    assert 4 < len(rows) < sum(LENGTHS)
    assert torch.equal(kept.positions[: len(rows)].cpu().long(), kept_runs.positions)
    torch.testing.assert_close(found[: len(rows)].cpu(), expected, atol=1e-5, rtol=1e-5)

    weight, bias = place(given.qkv)
    query = linear(found, weight[:WIDTH], bias[:WIDTH], rows=kept.cu_seqlens[:-1])
    key_value = linear(found, weight[WIDTH:], bias[WIDTH:], count=count)
    first = attend_first(query, key_value, kept.cu_seqlens, heads=HEADS)
    torch.testing.assert_close(first.cpu(), expected_first, atol=2e-5, rtol=2e-5)
