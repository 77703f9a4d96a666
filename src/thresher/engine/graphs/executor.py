"""The graph as an executor: built in memory, run by onnxruntime, one text at a time.

A text's answer is the same to the last bit whatever it is batched with. One text is answered sooner than by torch,
where handing out a thousand small operations takes longer than the products; many texts are faster on the packed
backends, which put them together.
"""

import math
import os
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import torch

from thresher.core.plan import PruningPlan
from thresher.engine.cores import BUDGET
from thresher.engine.executor import AnySize, Ids, Output, Types, batch_of, description
from thresher.engine.graphs.build import KEPT, LIMITS, LOGITS, Form, build_model
from thresher.engine.graphs.opened import Arrays, OnnxFile
from thresher.engine.inputs import Tables
from thresher.engine.weights import LayerScales, Weights
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens

LARGEST = 1_900_000_000  # bytes of a graph in memory, a little below protobuf's limit
NEVER = -1.0  # no score is below it: a layer with this threshold keeps all


class GraphExecutor(AnySize):
    """One model in onnxruntime, pruned or dense, in fp32 or, with a quantized run's scales, in static int8.

    Thresholds are an input of the graph, so that one graph serves all dials.
    """

    device, on_cores = "cpu", True
    token_budget = BUDGET
    in_flight, by_length = 1, True  # all threads work on one text
    window = 1024

    def __init__(self, weights: Weights, plan: PruningPlan, *, scales: Sequence[LayerScales] = ()) -> None:
        self.plan, self.shape, self.tables = plan, weights.shape, Tables.of(weights)
        self.dtype = "int8-static" if scales else "fp32"
        self.types = weights.token_type is not None and len(weights.token_type) > 1
        form = Form(types=self.types, one=True, kept=True, limits=True)
        graph = build_model(weights, plan, form=form, scales=scales)
        if graph.ByteSize() > LARGEST:
            raise ModelError(
                f"the graph has {graph.ByteSize():,} bytes, and the onnx backend takes {LARGEST:,}; use backend = 'cpu'"
            )
        self.session = OnnxFile(graph.SerializeToString(), threads=torch.get_num_threads())
        self._loaded_in, self._built_for = os.getpid(), plan
        self._limits = _limits(plan)

    def describe(self) -> dict[str, Any]:
        return description(self, backend="onnx")

    def with_plan(self, plan: PruningPlan) -> "GraphExecutor":
        """The same graph with other thresholds; a ModelError where it was built for layers of another kind."""
        if not _fits(self._built_for, plan):
            raise ModelError(
                "the graph was built for other layers that drop tokens, or that leave first tokens alone; load the "
                "model again for this plan"
            )
        other = copy(self)
        other.plan, other._limits = plan, _limits(plan)
        return other

    def pack(self, input_ids: Ids, token_types: Types = None) -> list[Arrays]:
        """Every text by itself, as the graph takes it."""
        tokens = batch_of(input_ids, token_types)
        self.tables.check(int(tokens.lengths.max()), tokens.ids, tokens.types)
        ids, found = tokens.ids.astype(np.int64)[None], []
        types = tokens.known_types().astype(np.int64)[None] if self.types else None
        bounds = tokens.starts.tolist()
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            arrays = {"input_ids": ids[:, low:high], "attention_mask": np.ones((1, high - low), np.int64)}
            found.append(arrays if types is None else {**arrays, "token_type_ids": types[:, low:high]})
        return found

    def launch(self, packed: list[Arrays]) -> list[Arrays]:
        """Whoever finishes it computes it."""
        return packed

    def finish(self, begun: list[Arrays]) -> Output:
        self.check_alive()
        found = [self.session((LOGITS, KEPT), {**arrays, LIMITS: self._limits}) for arrays in begun]
        outputs = np.concatenate([values[0] if self.plan.reads == "tokens" else values for values, _ in found])
        kept = np.concatenate([counts for _, counts in found])
        return Output(outputs=torch.from_numpy(outputs), kept=torch.from_numpy(kept))

    def run(self, packed: list[Arrays]) -> Output:
        return self.finish(self.launch(packed))

    def compute(self, input_ids: Ids, token_types: Types = None) -> Output:
        return self.run(self.pack(input_ids, token_types))

    def check_alive(self) -> None:
        """A forked child would wait for ever for the threads that onnxruntime has in its parent."""
        if os.getpid() != self._loaded_in:
            raise ModelError(
                "the engine with backend onnx was loaded before this process was forked, and onnxruntime's threads do "
                "not survive that; load the engine after the fork"
            )

    def warm_up(self, batches: Sequence[Tokens]) -> None:
        for tokens in batches:
            self.compute(tokens)


def _fits(built: PruningPlan, plan: PruningPlan) -> bool:
    """Whether a graph that was built for one plan can compute another: how tokens are judged is fixed in it, which
    layers look at scores, and which leave first tokens alone."""
    fixed = ("alone", "reads", "score", "scale", "score_queries", "protect", "separator_id", "rejoin")
    if any(getattr(built, name) != getattr(plan, name) for name in fixed):
        return False
    pairs = zip(built.thresholds[: plan.alone], plan.thresholds[: plan.alone], strict=True)
    return all((a == math.inf) == (b == math.inf) and (a > 0 or not b > 0) for a, b in pairs)


def _limits(plan: PruningPlan) -> Any:
    """(layers,) thresholds as the graph takes them."""
    return np.array([value if value > 0 else NEVER for value in plan.thresholds], np.float32)
