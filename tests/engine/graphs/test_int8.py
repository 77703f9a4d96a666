"""Graphs in int8: the products of the readable twin, whatever the family, and decisions that no neighbour changes."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine.graphs.running import answer, arrays, gated, opened
from tests.engine.makers import engine_with, reference
from tests.engine.test_engine import sequences
from tests.engine.test_find_scales import scales_of
from tests.models.families import BERT_LIKE, LAYERS, ragged
from thresher.core.plan import PruningPlan
from thresher.engine.backends.linear import check_int8
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.graphs.graph import Graph
from thresher.engine.graphs.int8 import Simulated, int8_affine, rounded_weight
from thresher.engine.weights import Affine, LayerScales, read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.plan import plan_of

LONG = (11, 1, 7, 3, 16, 23, 40, 9)

try:
    check_int8()  # onnxruntime's products saturate on the same processors
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)


def graph_of(model: Any, scales: list[LayerScales], plan: PruningPlan | None = None, **form: Any) -> Any:
    return build_model(read_weights(model), plan or plan_of(model), form=Form(**form), scales=scales)


def simulated(model: Any, scales: list[LayerScales], inputs: dict[str, torch.Tensor]) -> Any:
    return engine_with(model, lambda weights, plan: Simulated(weights, plan, scales)).compute(sequences(inputs))


def product(values: NDArray[Any], affine: Affine, scales: torch.Tensor, *, zero: int = 128) -> NDArray[Any]:
    """One product by onnxruntime."""
    from onnx import TensorProto, helper

    graph = Graph()
    found = int8_affine(graph, "values", affine, scales, name="product", zero=zero)
    sizes = (["rows", affine.weight.shape[1]], ["rows", len(affine.bias)])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
        for name, size in zip(("values", found), sizes, strict=True)
    ]
    made = helper.make_graph(graph.nodes, "one", ends[:1], ends[1:], initializer=graph.initializers)
    session = opened(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    result: NDArray[Any] = session.run(None, {"values": values})[0]
    return result


@pytest.mark.parametrize("kind", ["by channel", "one scale"])
def test_a_product_is_that_of_whole_numbers(kind: str) -> None:
    """On values that are whole numbers of steps nothing is left to rounding but the weights."""
    drawn = torch.Generator().manual_seed(0)
    affine = Affine(torch.randn(17, 33, generator=drawn), torch.randn(17, generator=drawn))
    scales = torch.rand(33, generator=drawn) + 0.5 if kind == "by channel" else torch.tensor(0.25)
    codes = torch.randint(-100, 101, (9, 33), generator=drawn)
    found = product((codes * scales).numpy(), affine, scales)
    weight, worth = rounded_weight(affine.weight * scales)
    expected = (codes.double() @ weight.double().T) * worth + affine.bias
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=1e-5)


def test_what_is_beyond_the_range_is_cut_off() -> None:
    affine = Affine(torch.eye(4), torch.zeros(4))
    values = np.array([[1000, -1000, 1, 0]], np.float32)
    np.testing.assert_allclose(product(values, affine, torch.ones(4)), [[127, -127, 1, 0]], rtol=1e-5)
    low = product(np.array([[-50, 300, 1, 0]], np.float32), affine, torch.tensor(1.0), zero=20)
    np.testing.assert_allclose(low, [[-20, 235, 1, 0]], rtol=1e-5)


def test_a_row_of_zeros_gives_its_bias() -> None:
    affine = Affine(torch.zeros(2, 3), torch.tensor([0.5, -700.0]))
    found = product(np.ones((1, 3), np.float32), affine, torch.ones(3))
    np.testing.assert_allclose(found, [[0.5, -700.0]], rtol=1e-6)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("family", BERT_LIKE)
def test_values_are_those_of_the_twin(family: str, single: bool) -> None:
    """Nothing is dropped, so that decisions cannot differ. Now and then float32's last digit makes a byte more or less,
    and so another value of that text."""
    model = gated(family, (0.0,) * LAYERS)
    inputs, scales = ragged(model, LONG), scales_of(model, LONG)
    exact = engine_with(model, reference()).compute(sequences(inputs)).outputs.numpy()
    twin = simulated(model, scales, inputs).outputs.numpy()
    (found,) = answer(opened(graph_of(model, scales, one=single)), arrays(inputs), "logits")
    lost = np.abs(twin - exact).mean()
    near = np.abs(found - twin).max(axis=1) < 1e-5
    assert near.mean() >= 0.75 and np.abs(found - twin).max() < 0.1
    assert lost > 1e-3


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("family", BERT_LIKE)
def test_a_text_alone_is_decided_as_in_a_batch(family: str, score: str) -> None:
    model = gated(family, score=score)
    inputs, scales = arrays(ragged(model, LONG)), scales_of(model, LONG)
    session = opened(graph_of(model, scales, kept=True))
    together, kept = answer(session, inputs, "logits", "kept")
    assert kept[:, 1].sum() < sum(LONG)
    for single in (session, opened(graph_of(model, scales, kept=True, one=True))):
        for row in range(len(LONG)):
            alone = {name: value[row : row + 1] for name, value in inputs.items()}
            found, passed = answer(single, alone, "logits", "kept")
            assert passed[0].tolist() == kept[row].tolist()
            np.testing.assert_allclose(found[0], together[row], atol=2e-2, rtol=2e-2)


def test_products_are_stored_and_run_as_int8() -> None:
    """Every product of a layer; onnxruntime fuses them, which nothing but its own graph shows."""
    import onnx

    model = gated("bert")
    graph = graph_of(model, scales_of(model, LONG))
    matrices = [each for each in graph.graph.initializer if each.data_type == onnx.TensorProto.INT8 and each.dims[1:]]
    assert len(matrices) == 4 * LAYERS + 1, "the last layer's queries are apart"
    assert {node.op_type for node in graph.graph.node} >= {"QuantizeLinear", "DequantizeLinear", "Gemm"}


def test_scales_of_another_model_are_refused() -> None:
    model = gated("bert")
    with pytest.raises(ModelError, match="int8 scales are not those of this model"):
        graph_of(model, scales_of(model, LONG)[:-1])
