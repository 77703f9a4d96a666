"""The layers as nodes: attention with its scores on live rows, the rest of a layer, and what a layer drops."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from thresher.core.layer import Steps, attention_input, finish
from thresher.core.plan import PruningPlan
from thresher.engine.backends.linear import ZERO
from thresher.engine.graphs.graph import Graph
from thresher.engine.graphs.int8 import int8_affine, zero_of
from thresher.engine.graphs.places import Places
from thresher.engine.graphs.rows import Live, Rows, back_in_order, true_places
from thresher.engine.weights import Affine, Layer, LayerScales, Norm, Weights

TINY = float(np.finfo(np.float32).tiny)


class LayerNodes:
    """Adds layers to a graph. `dial` is the graph's input that scales thresholds, or None; `limits` the names of
    thresholds that are inputs, one per layer, or None; with `scales`, one per layer, products are in static int8."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        plan: PruningPlan,
        *,
        places: Places,
        dial: str | None = None,
        limits: Sequence[str] | None = None,
        scales: Sequence[LayerScales] = (),
    ) -> None:
        self.graph, self.weights, self.plan, self.dial, self.scales = graph, weights, plan, dial, scales
        self.places, self.limits = places, limits
        # Where the dial may be 0, no layer is known to pass on first tokens only but the last.
        self.alone = plan.alone if dial is None or plan.restores else plan.layers - 1
        # States and origins of dropped tokens, for who reads them, and the layer that dropped them.
        self.left: list[tuple[str, str, int]] = []
        # Once they have rejoined: origins of all tokens, and the layer that dropped them, or the number of layers.
        self.gone: list[tuple[str, int]] = []
        self._off = None if dial is None else graph.node("Not", graph.node("Greater", dial, graph.number(0.0)))

    def layer(self, index: int, rows: Rows) -> Rows:
        """One whole layer: attend, drop, finish."""
        graph, live = self.graph, rows.live
        threshold = self.plan.thresholds[index] if index < self.plan.whole_from else 0.0
        scored = 0 < threshold < math.inf
        context, scores = self._attend(index, rows, scored=scored)
        beside = self._convolved(index, rows)
        if not threshold > 0:
            return replace(rows, hidden=self._finish(index, live.packed(context), rows.hidden, beside))
        keep = live.alive_and(self._keep(index, scores, rows))
        chosen = live.filled(true_places(graph, keep))
        stay = live.rows_at(chosen)
        if rows.origin is not None:
            gone = live.rows_at(true_places(graph, live.alive_and(graph.node("Not", keep))))
            self.left.append((self._take(rows.hidden, gone), self._take(rows.origin, gone), index))
        taken = {
            name: self._take(value, stay)
            for name in ("protected", "positions", "origin")
            if (value := getattr(rows, name)) is not None
        }
        beside = None if beside is None else self._take(beside, stay)
        hidden = self._finish(index, self._take(context, chosen), self._take(rows.hidden, stay), beside)
        return Rows(live=live.after(keep, chosen), hidden=hidden, **taken)

    def rejoined(self, rows: Rows, first: Rows, total: str) -> Rows:
        """All rows that the `first` layer had, `total` of them, each with its last state: nobody is left behind."""
        if not self.left or rows.origin is None:
            return rows
        hidden = self._take(self.states(rows), self.in_order(rows, total))
        self.gone = [*((origin, index) for _, origin, index in self.left), (rows.origin, self.plan.layers)]
        self.left = []
        return replace(first, hidden=hidden)

    def states(self, rows: Rows) -> str:
        """(total, width) every token's last known state: those of dropped tokens layer by layer, then those left."""
        if not self.left:
            return rows.hidden
        return str(self.graph.node("Concat", *(part for part, _, _ in self.left), rows.hidden, axis=0))

    def in_order(self, rows: Rows, total: str) -> str:
        """(total,) the row of `states` for every token of the input, in its order, where some are left behind."""
        assert rows.origin is not None  # or nobody would have been
        origins = self.graph.node("Concat", *(origin for _, origin, _ in self.left), rows.origin, axis=0)
        return back_in_order(self.graph, origins, total)

    def first_tokens(self, rows: Rows) -> str:
        """The layers from `alone` on, which pass on first tokens only: (batch, width)."""
        graph, live, layer = self.graph, rows.live, self.weights.layers[self.alone]
        width, name = self.weights.shape.width, f"{self._name(self.alone)}.attention"
        hidden, steps, spec = self._take(rows.hidden, live.first), self._steps(self.alone), layer.spec
        query, rest = _part(layer.qkv, 0, width), _part(layer.qkv, width, 3 * width)
        # First tokens are at position 0, where rotations leave queries as they are.
        asked = attention_input(spec, steps, hidden)
        asked = self._product(
            self.alone, "qkv", asked, query, name=f"{name}.query", scale=1 / spec.divisor, scaled=width
        )
        asked = graph.node("Reshape", asked, graph.whole(*(0,) * live.lead, spec.heads, 1, spec.head_width))
        states = attention_input(spec, steps, rows.hidden)
        both = self._product(self.alone, "qkv", states, rest, name=f"{name}.key_value")
        key, value = self._parts(layer, both, rows, turning=1)
        key, value = self._by_head(key, layer, live, turned=True), self._by_head(value, layer, live)
        bias = self.places.bias(layer, rows, asked, key, name=name, first=True)
        context = graph.node("MatMul", self._probabilities(asked, key, bias), value)
        context = graph.node("Reshape", context, graph.whole(-1, width))
        beside = self._convolved(self.alone, rows)
        beside = None if beside is None else self._take(beside, live.first)
        hidden = self._finish(self.alone, context, hidden, beside)
        for index in range(self.alone + 1, len(self.weights.layers)):
            name, own = f"{self._name(index)}.attention.value", self.weights.layers[index]
            states = attention_input(own.spec, self._steps(index), hidden)
            values = self._product(index, "qkv", states, _part(own.qkv, 2 * width, 3 * width), name=name)
            hidden = self._finish(index, values, hidden)
        return hidden

    def _attend(self, index: int, rows: Rows, *, scored: bool) -> tuple[str, str | None]:
        """Context (batch x n, width) and scores (batch, n) on the grid."""
        graph, live, layer = self.graph, rows.live, self.weights.layers[index]
        width, name = self.weights.shape.width, f"{self._name(index)}.attention"
        scale, states = 1 / layer.spec.divisor, attention_input(layer.spec, self._steps(index), rows.hidden)
        qkv = self._product(index, "qkv", states, layer.qkv, name=f"{name}.qkv", scale=scale, scaled=width)
        query, key, value = self._parts(layer, qkv, rows, turning=2)
        query, value = (self._by_head(part, layer, live) for part in (query, value))
        key = self._by_head(key, layer, live, turned=True)
        bias = self.places.bias(layer, rows, query, key, name=name)
        probabilities = self._probabilities(query, key, bias)
        context = graph.node("Transpose", graph.node("MatMul", probabilities, value), perm=_perm(live, (1, 0, 2)))
        context = graph.node("Reshape", context, graph.whole(-1, width))
        return context, self._scores(probabilities, value, rows) if scored else None

    def _parts(self, layer: Layer, projected: str, rows: Rows, *, turning: int) -> list[str]:
        """(total, parts x width) -> (batch, n, width) of each; all but the last, `turning` ones, by their positions."""
        graph, live, spec = self.graph, rows.live, layer.spec
        if spec.rotary_base is None:
            return list(
                graph.node("Split", live.grid(projected), axis=-1, num_outputs=turning + 1, outputs=turning + 1)
            )
        sizes = graph.whole(turning * spec.width, spec.width)
        turned, value = graph.node("Split", projected, sizes, axis=-1, outputs=2)
        turned = live.grid(self.places.turned(spec, turned, rows))
        if turning == 1:
            return [turned, live.grid(value)]
        return [*graph.node("Split", turned, axis=-1, num_outputs=2, outputs=2), live.grid(value)]

    def _by_head(self, part: str, layer: Layer, live: Live, *, turned: bool = False) -> str:
        """(batch, n, width) -> (batch, heads, n, head width); `turned`: (batch, heads, head width, n)."""
        sizes = (0,) * (live.lead + 1) + (layer.spec.heads, self.weights.shape.width // layer.spec.heads)
        parts = self.graph.node("Reshape", part, self.graph.whole(*sizes))
        return str(self.graph.node("Transpose", parts, perm=_perm(live, (1, 2, 0) if turned else (1, 0, 2))))

    def _probabilities(self, query: str, key: str, bias: str | None) -> str:
        """(batch, heads, queries, n); key is turned, and bias has the mask in it."""
        logits = self.graph.node("MatMul", query, key)
        logits = logits if bias is None else self.graph.node("Add", logits, bias)
        return str(self.graph.node("Softmax", logits, axis=-1))

    def _convolved(self, index: int, rows: Rows) -> str | None:
        """(total, width) what the layer's convolution makes of its input, inside each text; None where it has none."""
        own, graph, live = self.weights.layers[index].convolution, self.graph, rows.live
        if own is None:
            return None
        name, padding = f"{self._name(index)}.convolution", own.weight.shape[-1] // 2
        places = live.cleared(rows.hidden)
        weight, bias = graph.matrix(own.weight, name=f"{name}.weight"), graph.vector(own.bias, name=f"{name}.bias")
        turned = graph.node("Transpose", places, perm=(0, 2, 1))
        made = graph.node("Conv", turned, weight, bias, group=own.groups, pads=[padding, padding])
        made = graph.node("Transpose", graph.activation(made, own.activation), perm=(0, 2, 1))
        return live.packed(str(graph.node("Reshape", made, graph.whole(-1, self.weights.shape.width))))

    def _scores(self, probabilities: str, value: str, rows: Rows) -> str:
        """(batch, n) in the plan's scale."""
        graph, live = self.graph, rows.live
        received, heads = live.received(probabilities, self.places.counted(rows)), graph.whole(live.lead)
        if self.plan.score == "attention":
            relative = graph.node("ReduceMean", received, heads, keepdims=0)
        else:
            lengths = graph.node("ReduceL2", value, graph.whole(-1), keepdims=0)
            moved = graph.node("ReduceSum", graph.node("Mul", received, lengths), heads, keepdims=0)
            relative = graph.node("Div", moved, graph.node("Max", live.mean(moved), graph.number(TINY)))
        return str(relative) if self.plan.scale == "relative" else live.by_count(relative)

    def _keep(self, index: int, scores: str | None, rows: Rows) -> str:
        """(batch, n) or (n,) booleans: above the threshold or protected; all where the dial is at 0."""
        graph, live = self.graph, rows.live
        if rows.protected is None:
            keep = graph.node("Equal", live.places, graph.one_whole(0))
        else:
            keep = live.grid(rows.protected)
        if scores is not None:
            limit = graph.number(self.plan.thresholds[index]) if self.limits is None else self.limits[index]
            limit = limit if self.dial is None else graph.node("Mul", limit, self.dial)
            keep = graph.node("Or", graph.node("Greater", scores, limit), keep)
        return str(keep if self._off is None else graph.node("Or", keep, self._off))

    def _finish(self, index: int, context: str, hidden: str, beside: str | None = None) -> str:
        """Everything after attention, and what a convolution gave: (rows, width) each."""
        layer = self.weights.layers[index]
        found = finish(layer.spec, self._steps(index), context, hidden)
        if beside is None or layer.convolution is None:
            return found
        name = f"{self._name(index)}.convolution_norm"
        return self.graph.norm(self.graph.node("Add", found, beside), layer.convolution.norm, name=name)

    def _steps(self, index: int) -> Steps[str]:
        graph, layer, name = self.graph, self.weights.layers[index], self._name(index)

        def normed(norm: Norm | None, kind: str) -> Callable[[str], str]:
            return lambda values: values if norm is None else graph.norm(values, norm, name=f"{name}.{kind}")

        def feed_forward(values: str) -> str:
            inner = self._product(index, "ffn_in", values, layer.ffn_in, name=f"{name}.ffn_in")
            if layer.spec.gated:
                inner, gate = graph.node("Split", inner, axis=-1, num_outputs=2, outputs=2)
                inner = graph.node("Mul", graph.activation(inner, layer.spec.activation), gate)
            else:
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
