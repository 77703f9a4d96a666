"""The layers as nodes: attention with its scores on live rows, the rest of a layer, and what a layer drops."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from thresher.core.layer import Steps, finish
from thresher.core.plan import PruningPlan
from thresher.engine.backends.linear import ZERO
from thresher.engine.weights import Affine, Layer, LayerScales, Norm, Weights
from thresher.exporting.graph import Graph
from thresher.exporting.int8 import int8_affine, zero_of
from thresher.exporting.rows import Live, true_places

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Rows:
    """What is known of live rows, packed: (total, ...) each; None where nobody asks.

    protected: booleans; positions: places in the original text; origin: rows of the packed input.
    """

    live: Live
    hidden: str
    protected: str | None = None
    positions: str | None = None
    origin: str | None = None


class LayerNodes:
    """Adds layers to a graph. `dial` is the graph's input that scales thresholds, or None; with `scales`, one per
    layer, products are in static int8."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        plan: PruningPlan,
        *,
        dial: str | None = None,
        scales: Sequence[LayerScales] = (),
    ) -> None:
        self.graph, self.weights, self.plan, self.dial, self.scales = graph, weights, plan, dial, scales
        # Where the dial may be 0, no layer is known to pass on first tokens only but the last.
        self.alone = plan.alone if dial is None or plan.restores else plan.layers - 1
        # States and origins of dropped tokens, for who reads them, and the layer that dropped them.
        self.left: list[tuple[str, str, int]] = []
        self._bias: tuple[Live, str] | None = None
        self._off = None if dial is None else graph.node("Not", graph.node("Greater", dial, graph.number(0.0)))

    def layer(self, index: int, rows: Rows) -> Rows:
        """One whole layer: attend, drop, finish."""
        graph, live, threshold = self.graph, rows.live, self.plan.thresholds[index]
        scored = 0 < threshold < math.inf
        context, scores = self._attend(index, rows, scored=scored)
        if not threshold > 0:
            return replace(rows, hidden=self._finish(index, live.packed(context), rows.hidden))
        keep = live.alive_and(self._keep(threshold, scores, rows))
        chosen = true_places(graph, keep)
        stay = live.rows_at(chosen)
        if rows.origin is not None:
            gone = live.rows_at(true_places(graph, live.alive_and(graph.node("Not", keep))))
            self.left.append((self._take(rows.hidden, gone), self._take(rows.origin, gone), index))
        taken = {
            name: self._take(value, stay)
            for name in ("protected", "positions", "origin")
            if (value := getattr(rows, name)) is not None
        }
        hidden = self._finish(index, self._take(context, chosen), self._take(rows.hidden, stay))
        return Rows(live=live.after(keep, chosen), hidden=hidden, **taken)

    def first_tokens(self, rows: Rows) -> str:
        """The layers from `alone` on, which pass on first tokens only: (batch, width)."""
        graph, live, layer = self.graph, rows.live, self.weights.layers[self.alone]
        width, name = self.weights.shape.width, f"{self._name(self.alone)}.attention"
        hidden = self._take(rows.hidden, live.first)
        query, rest = _part(layer.qkv, 0, width), _part(layer.qkv, width, 3 * width)
        scale = 1 / layer.spec.divisor
        asked = self._product(self.alone, "qkv", hidden, query, name=f"{name}.query", scale=scale, scaled=width)
        lead = (0,) * live.lead
        asked = graph.node("Reshape", asked, graph.whole(*lead, layer.spec.heads, 1, width // layer.spec.heads))
        both = live.grid(self._product(self.alone, "qkv", rows.hidden, rest, name=f"{name}.key_value"))
        key, value = graph.node("Split", both, axis=-1, num_outputs=2, outputs=2)
        key, value = self._by_head(key, layer, live, turned=True), self._by_head(value, layer, live)
        probabilities = self._probabilities(asked, key, live, self._first_bias(rows))
        context = graph.node("MatMul", probabilities, value)
        context = graph.node("Reshape", context, graph.whole(-1, width))
        hidden = self._finish(self.alone, context, hidden)
        for index in range(self.alone + 1, len(self.weights.layers)):
            name = f"{self._name(index)}.attention.value"
            part = _part(self.weights.layers[index].qkv, 2 * width, 3 * width)
            values = self._product(index, "qkv", hidden, part, name=name)
            hidden = self._finish(index, values, hidden)
        return hidden

    def _attend(self, index: int, rows: Rows, *, scored: bool) -> tuple[str, str | None]:
        """Context (batch x n, width) and scores (batch, n) on the grid."""
        graph, live, layer = self.graph, rows.live, self.weights.layers[index]
        width, name = self.weights.shape.width, f"{self._name(index)}.attention"
        scale = 1 / layer.spec.divisor
        qkv = self._product(index, "qkv", rows.hidden, layer.qkv, name=f"{name}.qkv", scale=scale, scaled=width)
        query, key, value = graph.node("Split", live.grid(qkv), axis=-1, num_outputs=3, outputs=3)
        query, value = (self._by_head(part, layer, live) for part in (query, value))
        key = self._by_head(key, layer, live, turned=True)
        probabilities = self._probabilities(query, key, live, self._distance_bias(rows))
        context = graph.node("Transpose", graph.node("MatMul", probabilities, value), perm=_perm(live, (1, 0, 2)))
        context = graph.node("Reshape", context, graph.whole(-1, width))
        return context, self._scores(probabilities, value, live) if scored else None

    def _by_head(self, part: str, layer: Layer, live: Live, *, turned: bool = False) -> str:
        """(batch, n, width) -> (batch, heads, n, head width); `turned`: (batch, heads, head width, n)."""
        sizes = (0,) * (live.lead + 1) + (layer.spec.heads, self.weights.shape.width // layer.spec.heads)
        parts = self.graph.node("Reshape", part, self.graph.whole(*sizes))
        return str(self.graph.node("Transpose", parts, perm=_perm(live, (1, 2, 0) if turned else (1, 0, 2))))

    def _probabilities(self, query: str, key: str, live: Live, bias: str | None) -> str:
        """(batch, heads, queries, n); key is turned, and bias has the mask in it."""
        logits = self.graph.node("MatMul", query, key)
        bias = live.mask if bias is None else bias
        logits = logits if bias is None else self.graph.node("Add", logits, bias)
        return str(self.graph.node("Softmax", logits, axis=-1))

    def _distance_bias(self, rows: Rows) -> str | None:
        """(batch, heads, n, n) by distance, with the mask in it; one for all layers until something is dropped."""
        graph, live, table = self.graph, rows.live, self.weights.distance_bias
        if table is None or rows.positions is None:
            return None
        if self._bias is None or self._bias[0] is not live:
            at = live.grid(rows.positions)
            keys, queries = (graph.node("Unsqueeze", at, graph.whole(axis)) for axis in (-2, -1))
            distance = graph.node("Add", graph.node("Sub", keys, queries), graph.one_whole(len(table) // 2))
            self._bias = live, self._from_table(table, distance, live, perm=(1, 0, 2, 3))
        return self._bias[1]

    def _first_bias(self, rows: Rows) -> str | None:
        """(batch, heads, 1, n): first tokens are at position 0."""
        graph, live, table = self.graph, rows.live, self.weights.distance_bias
        if table is None or rows.positions is None:
            return None
        distance = graph.node("Add", live.grid(rows.positions), graph.one_whole(len(table) // 2))
        distance = graph.node("Unsqueeze", distance, graph.whole(-2))
        return self._from_table(table, distance, live, perm=(1, 0, 2, 3))

    def _from_table(self, table: Tensor, distance: str, live: Live, *, perm: tuple[int, ...]) -> str:
        """Biases by head first: (batch, queries, n) distances -> (batch, heads, queries, n)."""
        by_head = self.graph.vector(table.T, name="distance_bias")
        bias = self.graph.node("Gather", by_head, distance, axis=1)
        if live.mask is None:
            return str(bias)
        return str(self.graph.node("Add", self.graph.node("Transpose", bias, perm=perm), live.mask))

    def _scores(self, probabilities: str, value: str, live: Live) -> str:
        """(batch, n) in the plan's scale."""
        graph = self.graph
        received, heads = live.received(probabilities), graph.whole(live.lead)
        if self.plan.score == "attention":
            relative = graph.node("ReduceMean", received, heads, keepdims=0)
        else:
            lengths = graph.node("ReduceL2", value, graph.whole(-1), keepdims=0)
            moved = graph.node("ReduceSum", graph.node("Mul", received, lengths), heads, keepdims=0)
            relative = graph.node("Div", moved, graph.node("Max", live.mean(moved), graph.number(TINY)))
        return str(relative) if self.plan.scale == "relative" else live.by_count(relative)

    def _keep(self, threshold: float, scores: str | None, rows: Rows) -> str:
        """(batch, n) or (n,) booleans: above the threshold or protected; all where the dial is at 0."""
        graph, live = self.graph, rows.live
        if rows.protected is None:
            keep = graph.node("Equal", live.places, graph.one_whole(0))
        else:
            keep = live.grid(rows.protected)
        if scores is not None:
            limit = graph.number(threshold)
            limit = limit if self.dial is None else graph.node("Mul", limit, self.dial)
            keep = graph.node("Or", graph.node("Greater", scores, limit), keep)
        return str(keep if self._off is None else graph.node("Or", keep, self._off))

    def _finish(self, index: int, context: str, hidden: str) -> str:
        """Everything after attention: (rows, width) each."""
        return finish(self.weights.layers[index].spec, self._steps(index), context, hidden)

    def _steps(self, index: int) -> Steps[str]:
        graph, layer, name = self.graph, self.weights.layers[index], self._name(index)

        def normed(norm: Norm | None, kind: str) -> Callable[[str], str]:
            return lambda values: values if norm is None else graph.norm(values, norm, name=f"{name}.{kind}")

        def feed_forward(values: str) -> str:
            inner = self._product(index, "ffn_in", values, layer.ffn_in, name=f"{name}.ffn_in")
            inner = graph.activation(inner, layer.spec.activation)
            return self._product(index, "ffn_out", inner, layer.ffn_out, name=f"{name}.ffn_out")

        def output(context: str) -> str:
            own = layer.attention_output
            return self._product(index, "attention_output", context, own, name=f"{name}.attention.output")

        return Steps(
            output=output,
            norms=(normed(layer.attention_norm, "attention_norm"), normed(layer.output_norm, "output_norm")),
            feed_forward=feed_forward,
            add=lambda values, residual: str(graph.node("Add", values, residual)),
        )

    def _product(
        self, index: int, site: str, values: str, affine: Affine, *, name: str, scale: float = 1.0, scaled: int = 0
    ) -> str:
        """`Graph.affine` in the graph's arithmetic."""
        if not self.scales:
            return self.graph.affine(values, affine, name=name, scale=scale, scaled=scaled)
        if scaled:
            factors = torch.ones(len(affine.bias))
            factors[:scaled] = scale
            affine = Affine(affine.weight.float() * factors[:, None], affine.bias.float() * factors)
        own = self.scales[self._first_pass(index)]
        zero = zero_of(self.weights.layers[index], own) if site == "ffn_out" else ZERO
        return int8_affine(self.graph, values, affine, getattr(own, site), name=name, zero=zero)

    def _take(self, values: str, rows: str) -> str:
        return str(self.graph.node("Gather", values, rows, axis=0))

    def _name(self, index: int) -> str:
        """Passes that share a layer share its name, and so its weights."""
        return f"layer.{self._first_pass(index)}"

    def _first_pass(self, index: int) -> int:
        layers = self.weights.layers
        return next(i for i, layer in enumerate(layers) if layer is layers[index])


def _perm(live: Live, order: tuple[int, ...]) -> list[int]:
    """The order of one text's dimensions, behind those of the batch."""
    return [*range(live.lead), *(live.lead + axis for axis in order)]


def _part(affine: Affine, begin: int, end: int) -> Affine:
    return Affine(weight=affine.weight[begin:end], bias=affine.bias[begin:end])
