"""Scores by value where their numbers are known: by hand, of a single token, of values that are all zero."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.makers import Make, cpu, engine_with, reference
from tests.engine.test_engine import sequences
from tests.engine.test_find_scales import scales_of
from tests.models.families import LAYERS, LENGTHS, pruned_model, ragged, run
from thresher.core.cost import EncoderShape
from thresher.core.layer import LayerSpec
from thresher.core.plan import PruningPlan
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, HeadWeights, Layer, Norm, Weights
from thresher.models.registry import family_of

HEADS, WIDTH = 2, 4


def by_hand() -> Weights:
    """Hidden states (k, v, k', v') are read so: every query pays attention in proportion to exp(k) in head 1 and to
    exp(k') in head 2, and the values there are (0, v) and (0, v')."""
    qkv = torch.zeros(3, WIDTH, WIDTH)
    qkv[1, 0, 0] = qkv[1, 2, 2] = math.sqrt(WIDTH / HEADS)
    qkv[2, 1, 1] = qkv[2, 3, 3] = 1.0
    bias = torch.zeros(3, WIDTH)
    bias[0, [0, 2]] = 1.0
    same, norm = Affine(torch.eye(WIDTH), torch.zeros(WIDTH)), Norm(torch.ones(WIDTH), torch.zeros(WIDTH), 1e-12)
    spec = LayerSpec(heads=HEADS, width=WIDTH, ffn_width=WIDTH, activation=F.gelu)
    layer = Layer(spec, Affine(qkv.flatten(0, 1), bias.flatten()), same, norm, same, same, norm)
    table = torch.zeros(8, WIDTH)
    return Weights(
        word=table,
        position=table,
        positions=len(table),
        position_offset=0,
        uncounted_id=None,
        token_type=None,
        embedding_norm=norm,
        projection=None,
        layers=[layer, layer],
        final_norm=None,
        distance_bias=None,
        head=HeadWeights("first", same, torch.tanh, output=same),
        shape=EncoderShape(layers=2, width=WIDTH, ffn_width=WIDTH),
    )


def states(attended: list[list[float]], values: list[list[float]]) -> Tensor:
    """(tokens, width): attended and values are (tokens, heads)."""
    return torch.stack([torch.tensor(attended).log(), torch.tensor(values)], dim=-1).flatten(1)


# Shares of attention in each head, and values. Of three tokens the first is attended to most and passes on least.
ATTENDED = [[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]
VALUES = [[0.0, 2.0], [4.0, 0.0], [2.0, -2.0]]
EXPECTED = {"attention": [1.125, 0.75, 1.125], "value": [0.5, 1.0, 1.5]}
BACKENDS: dict[str, Make] = {"reference": reference(), "reference fp64": reference(torch.float64), "cpu": cpu()}


def scores_of(make: Make, score: str, *texts: Tensor) -> list[list[float]]:
    backend = make(by_hand(), PruningPlan(thresholds=(0.0, 0.0), score=score))
    hidden = torch.cat(texts).to(torch.float64 if backend.dtype == "fp64" else torch.float32)
    _, scores = backend.attend(0, hidden, Ragged.pack([torch.zeros(len(text)) for text in texts]), scored=True)
    assert scores is not None
    return [part.tolist() for part in scores.split([len(text) for text in texts])]


@pytest.mark.parametrize("score", EXPECTED)
@pytest.mark.parametrize("kind", BACKENDS)
def test_by_hand(kind: str, score: str) -> None:
    """Every text has a mean of its own: twice the values, or a text of one token beside it, change nothing."""
    text, double = states(ATTENDED, VALUES), states(ATTENDED, [[2 * v for v in row] for row in VALUES])
    found = scores_of(BACKENDS[kind], score, text, double, text[:1])
    for scores, expected in zip(found, [EXPECTED[score], EXPECTED[score], [1.0]], strict=True):
        assert scores == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", BACKENDS)
def test_values_of_zero_score_zero(kind: str) -> None:
    text, nothing = states(ATTENDED, VALUES), states(ATTENDED, [[0.0, 0.0]] * 3)
    found = scores_of(BACKENDS[kind], "value", nothing, text, nothing[:1])
    assert found[0] == [0.0] * 3 and found[2] == [0.0]
    assert found[1] == pytest.approx(EXPECTED["value"], rel=1e-6)


def without_values_(model: Any, index: int) -> None:
    """Make all values of a layer zero."""
    family = family_of(model)
    value = family.parts(list(family.layers(model.base_model))[index]).qkv[2]
    with torch.no_grad():
        value.weight.zero_()
        value.bias.zero_()


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "int8", "int8-static"])
def test_a_layer_without_values_drops_what_it_may(dtype: str) -> None:
    """As in the attached model; nothing becomes NaN on the way."""
    model = pruned_model("bert", (0.0, 0.5, 0.0, 0.0), score="value")
    without_values_(model, 1)
    expected, trace = run(model, ragged(model))
    scales = scales_of(model) if dtype == "int8-static" else []
    backend = reference(torch.float64) if dtype == "fp64" else cpu(dtype, scales)
    output = engine_with(model, backend).compute(sequences(ragged(model)))
    assert output.kept.tolist() == [[length, 1, 1, 1] for length in LENGTHS]
    assert torch.equal(output.kept[:, :-1], trace.kept()[:, :-1])
    assert bool(output.outputs.isfinite().all())
    if dtype in ("fp64", "fp32"):
        torch.testing.assert_close(output.outputs.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "int8", "int8-static"])
def test_thresholds_of_zero_are_the_dense_model(dtype: str) -> None:
    """And so is a dial of zero, whatever the thresholds; the score then has no part in anything."""
    pruned, dense = pruned_model("bert", score="value"), pruned_model("bert", (0.0,) * LAYERS, score="value")
    inputs = sequences(ragged(dense))
    scales = scales_of(dense) if dtype == "int8-static" else []

    backend = reference(torch.float64) if dtype == "fp64" else cpu(dtype, scales)
    expected = engine_with(pruned_model("bert", (0.0,) * LAYERS), backend).compute(inputs)
    for found in (engine_with(dense, backend).compute(inputs), engine_with(pruned, backend, 0.0).compute(inputs)):
        assert found.kept.tolist() == expected.kept.tolist() == [[n, n, n, 1] for n in LENGTHS]
        assert torch.equal(found.outputs, expected.outputs)
