"""The graph as an executor: the answers and decisions of the reference, the same alone as in a batch."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.engine.graphs.running import TOLERANCE, expected_of, gated
from tests.engine.test_dials import TEXTS, pruned_model
from tests.engine.test_engine import sequences
from tests.engine.test_find_scales import scales_of
from tests.models.families import FAMILIES, LENGTHS, SOME, prune_with_, ragged, tiny_model
from thresher.engine.arithmetic import int8_works
from thresher.engine.choose import choose
from thresher.engine.engine import Engine
from thresher.engine.graphs import executor as module
from thresher.engine.graphs.executor import GraphExecutor
from thresher.engine.graphs.int8 import Simulated
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.plan import plan_of

HEADS = ("classes", "first", "mean", "tags")


def model_of(family: str, kind: str) -> Any:
    if kind != "tags":
        return gated(family, reads=None if kind == "classes" else kind, score="value")
    model = tiny_model(family, means="tags")
    prune_with_(model, SOME, score="value")
    return model


def on_onnx(model: Any, **settings: Any) -> GraphExecutor:
    return GraphExecutor(read_weights(model), plan_of(model), **settings)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_head(family: str, kind: str) -> None:
    model = model_of(family, kind)
    inputs = ragged(model)
    expected, found = expected_of(model, inputs), on_onnx(model).compute(sequences(inputs))
    assert int(found.kept.sum()) < sum(LENGTHS) * found.kept.shape[1]
    assert found.kept.tolist() == expected.kept.tolist()
    np.testing.assert_allclose(found.outputs.numpy(), expected.outputs.numpy(), **TOLERANCE)


@pytest.mark.parametrize("kind", ["classes", "tags"])
def test_a_text_gets_the_same_bits_alone_and_in_a_batch(kind: str) -> None:
    model = model_of("mpnet", kind)
    executor, texts = on_onnx(model), sequences(ragged(model))
    together, alone = executor.compute(texts), [executor.compute([text]) for text in texts]
    assert torch.equal(together.outputs, torch.cat([each.outputs for each in alone]))
    assert torch.equal(together.kept, torch.cat([each.kept for each in alone]))


def test_token_types_are_read_and_missing_ones_are_zeros() -> None:
    model = gated("bert", score="value")
    executor, texts = on_onnx(model), sequences(ragged(model))
    types = [[int(place > 2) for place in range(len(text))] for text in texts]
    reference = PackedExecutor(Simulated(read_weights(model), plan_of(model)))
    for given in (types, None):
        expected, found = reference.compute(texts, given), executor.compute(texts, given)
        np.testing.assert_allclose(found.outputs.numpy(), expected.outputs.numpy(), **TOLERANCE)
    assert not torch.equal(executor.compute(texts, types).outputs, executor.compute(texts).outputs)


@pytest.mark.skipif(not int8_works(), reason="int8 products saturate on this processor")
@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_static_int8_decides_as_its_readable_twin(family: str) -> None:
    """Whole bytes hang on the last digits, so a few counts may differ; values of the others are near."""
    model = gated(family, score="value").float()
    inputs = ragged(model)
    scales = scales_of(model, LENGTHS)
    found = on_onnx(model, scales=scales).compute(sequences(inputs))
    twin = Simulated(read_weights(model), plan_of(model), scales)
    expected = PackedExecutor(twin).compute(sequences(inputs))
    same = (found.kept == expected.kept).all(dim=1)
    assert int(same.sum()) >= len(same) - 1
    np.testing.assert_allclose(found.outputs[same].numpy(), expected.outputs[same].numpy(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dial", [0.0, 0.5, 1.5])
def test_another_dial_is_what_loading_at_it_gives(dial: float) -> None:
    model = pruned_model()
    ours = Engine.from_model(model, tiny_tokenizer(), backend="onnx").at_dial(dial).predict_arrays(TEXTS)
    theirs = Engine.from_model(model, tiny_tokenizer(), backend="reference", dial=dial).predict_arrays(TEXTS)
    assert ours.kept.tolist() == theirs.kept.tolist()
    np.testing.assert_allclose(ours.outputs, theirs.outputs, **TOLERANCE)


def test_a_plan_that_the_graph_cannot_compute_is_refused() -> None:
    model = pruned_model([0.5, float("inf"), float("inf"), float("inf")])
    engine = Engine.from_model(model, tiny_tokenizer(), backend="onnx")
    assert engine.at_dial(2.0).executor.plan.dial == 2.0
    with pytest.raises(ModelError, match="load the model again for this plan"):
        engine.at_dial(0.0)


def test_it_says_what_it_is() -> None:
    engine = Engine.from_model(pruned_model(), tiny_tokenizer(), backend="onnx")
    about = engine.describe()
    assert (about["backend"], about["device"], about["dtype"]) == ("onnx", "cpu", "fp32")
    assert about["why"] == "onnxruntime was asked for, one text at a time"


def test_a_forked_child_is_refused_and_no_text_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.from_model(pruned_model(), tiny_tokenizer(), backend="onnx")
    parent = os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: parent + 1)
    with pytest.raises(ModelError, match="load the engine after the fork"):
        engine.executor.compute([[5, 6]])
    with pytest.raises(ModelError, match="load the engine after the fork"):
        engine.finish(engine.begin(engine.read(TEXTS)))


def test_what_is_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1000)
    with pytest.raises(ModelError, match="and the onnx backend takes 1,000; use backend = 'cpu'"):
        on_onnx(gated("bert"))


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="dtype = 'bf16' is not one of the onnx backend: auto, fp32, int8-static"):
        choose("onnx", "bf16")
    with pytest.raises(ConfigError, match="int8-static needs a quantized run"):
        choose("onnx", "int8-static")
    with pytest.raises(ConfigError, match="backend onnx does not run on device cuda"):
        choose("onnx", device="cuda")
    with pytest.raises(ConfigError, match="mode = 'graph' is for the cuda backend, and the backend here is onnx"):
        choose("onnx", mode="graph")
    monkeypatch.setattr("thresher.engine.graphs.opened.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"onnx is not installed, and backend onnx needs it; pip install 'thresher\["):
        choose("onnx")
