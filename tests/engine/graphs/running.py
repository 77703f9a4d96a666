"""Graphs of tiny models, run by onnxruntime in one thread."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from tests.engine.makers import engine_with, reference
from tests.engine.test_engine import sequences
from tests.models.families import SOME, prune_with_, randomize_, tiny_config, tiny_model
from thresher.core.heads import Head
from thresher.core.plan import PruningPlan
from thresher.engine.executor import Output
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.weights import read_weights
from thresher.models.embedder import Embedder
from thresher.models.heads import head_of
from thresher.models.plan import plan_of

Arrays = dict[str, NDArray[Any]]
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def gated(name: str, thresholds: tuple[float, ...] = SOME, *, reads: str | None = None, **settings: Any) -> Any:
    """A tiny classifier, or with `reads` an embedder, that drops tokens."""
    if reads is None:
        model = tiny_model(name)
    else:
        encoder = AutoModel.from_config(tiny_config(name))
        randomize_(encoder, 0)
        model = Embedder(encoder.double(), Head(reads=reads, means="embedding", normalised=True, width=20)).eval()
    prune_with_(model, thresholds, **settings)
    return model


def graph_of(model: Any, plan: PruningPlan | None = None, **form: Any) -> Any:
    means = head_of(model).means
    return build_model(read_weights(model), plan or plan_of(model), form=Form(**form), means=means)


def opened(graph: Any) -> Any:
    """A session for a graph that the strictest checks of onnx have passed."""
    onnx.checker.check_model(graph, full_check=True)
    onnx.shape_inference.infer_shapes(graph, check_type=True, strict_mode=True, data_prop=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = 1, 1, 4
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def arrays(inputs: dict[str, torch.Tensor]) -> Arrays:
    return {name: value.numpy() for name, value in inputs.items()}


def answer(session: Any, inputs: Arrays, *names: str) -> list[NDArray[Any]]:
    """The named outputs; those of single texts are put together for a graph that takes only these."""
    if session.get_inputs()[0].shape[0] != 1:
        return list(session.run(list(names), inputs))
    rows = range(len(inputs["input_ids"]))
    found = [session.run(list(names), {key: value[row : row + 1] for key, value in inputs.items()}) for row in rows]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def expected_of(model: Any, inputs: dict[str, torch.Tensor], dial: float = 1.0) -> Output:
    """What the engine's reference computes in float32."""
    return engine_with(model, reference(), dial=dial).compute(sequences(inputs))
