"""The layer loop on the GPU. It never waits for the device; what follows a pruning may: see live.py.

Two things go from layer to layer: hidden states, and what attention is given. They are the same in post-norm models. In
pre-norm ones the second is normalised, in the pass that adds up the first: so a layer is told which norm follows it.
"""

from typing import Any

import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.cuda.batch import Inputs
from thresher.engine.cuda.live import Counts, Live
from thresher.engine.cuda.model import GpuLayer, GpuModel
from thresher.engine.cuda.products import (
    Count,
    gated_product,
    normed,
    normed_product,
    product,
    summed_product,
    turned_product,
    units_of,
)
from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.behind import leave_behind, mean_behind
from thresher.engine.kernels.embeddings import embed
from thresher.engine.kernels.first import attend_first
from thresher.engine.kernels.linear import linear_in_parts
from thresher.engine.kernels.plans import plan
from thresher.engine.kernels.prune import Kept, prune
from thresher.engine.kernels.rotary import Turns
from thresher.engine.weights import Affine


class Forward:
    """One model with its plan."""

    def __init__(self, model: GpuModel, plan: PruningPlan) -> None:
        self.model, self.plan = model, plan

    def __call__(self, inputs: Inputs, counts: Counts) -> Tensor:
        """The head's outputs (sequences, outputs) in float32, or (capacity, outputs) where it reads tokens."""
        hidden, live, plan, model = self._embedded(inputs, counts.live), counts.live, self.plan, self.model
        tokens, starts = live.tokens, live.cu_seqlens
        given = normed(hidden, model.layers[0].attention_norm, tokens) if model.layers[0].pre_norm else hidden
        states = torch.empty_like(hidden) if plan.restores else None
        for index, threshold in enumerate(plan.thresholds[: plan.alone]):
            layer = model.layers[index]
            if index == plan.whole_from and states is not None and plan.pruning_layers:
                leave_behind(states, hidden, live.cu_seqlens, live.positions, starts, keep=None)
                hidden, states, live = states, torch.empty_like(states), counts.live
                given = normed(hidden, layer.attention_norm, tokens) if layer.pre_norm else hidden
            context, received = self._attend(layer, given, live, scored=index in plan.pruning_layers)
            beside = None if layer.beside is None else layer.beside.of(hidden, live)
            rows = None
            if received is not None:
                kept = self._prune(received, live, threshold)
                if states is not None:
                    leave_behind(states, hidden, live.cu_seqlens, live.positions, starts, keep=kept.keep)
                live, rows = counts.settle(kept, live)
            hidden, given = self._finish(index, context, hidden, live.tokens, rows=rows, residual_rows=rows)
            if layer.beside is not None and beside is not None:
                hidden = given = layer.beside.joined(hidden, beside, live.tokens, rows=rows)
        if states is None:
            return self._head(self._of_first_tokens(hidden, given, live), live.sequences)
        leave_behind(states, hidden, live.cu_seqlens, live.positions, starts, keep=None)
        states = normed(states, model.final_norm, tokens)
        if plan.reads == "tokens":
            return self._head(states, tokens)
        return self._head(mean_behind(states, starts), live.sequences)

    def _attend(self, layer: GpuLayer, given: Tensor, live: Live, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        """Context (capacity, width), and what each token received in every head where it is asked for."""
        return attention(
            _projected(layer, given, layer.qkv, live),
            live.cu_seqlens,
            max_length=live.max_length,
            score=self.plan.score if scored else None,
            score_queries=self.plan.score_queries,
            typical=live.typical,
            units=units_of(layer.attention_output),
            **self._places(layer, live),
        )

    def _places(self, layer: GpuLayer, live: Live) -> dict[str, Any]:
        """What both kernels of attention are told beside states."""
        return {
            "heads": layer.heads,
            "positions": live.positions,
            "distance_bias": self.model.distance_bias,
            "distances": layer.distances,
            "window": layer.window,
            "divisor": layer.divisor,
        }

    def _prune(self, received: Tensor, live: Live, threshold: float) -> Kept:
        return prune(
            received,
            live.cu_seqlens,
            live.positions,
            live.protected,
            threshold=threshold,
            max_length=live.max_length,
            scale=self.plan.scale,
            score=self.plan.score,
            score_queries=self.plan.score_queries,
        )

    def _embedded(self, inputs: Inputs, live: Live) -> Tensor:
        model, norm = self.model, self.model.embedding_norm
        hidden = embed(
            inputs.ids,
            inputs.position_rows,
            model.word,
            model.position,
            norm.weight,
            norm.bias,
            epsilon=norm.epsilon,
            token_type=model.token_type,
            token_types=None if model.token_type is None else inputs.types,
            count=live.tokens.on_device,
        )
        return hidden if model.projection is None else product(hidden, model.projection, live.tokens)

    def _of_first_tokens(self, hidden: Tensor, given: Tensor, live: Live) -> Tensor:
        """The layers that pass on these only, and the last norm: (sequences, width)."""
        alone, first = self.plan.alone, live.cu_seqlens[:-1]
        layer = self.model.layers[alone]
        query = product(given, layer.projection(0), live.sequences, rows=first)  # at position 0, which turns nothing
        key_value = _projected(layer, given, layer.projection(1, 2), live)
        units = units_of(layer.attention_output)
        context = attend_first(query, key_value, live.cu_seqlens, units=units, **self._places(layer, live))
        beside = None if layer.beside is None else layer.beside.of(hidden, live)
        hidden, given = self._finish(alone, context, hidden, live.sequences, rows=None, residual_rows=first)
        if layer.beside is not None and beside is not None:
            hidden = given = layer.beside.joined(hidden, beside, live.sequences, rows=first)
        for index in range(alone + 1, len(self.model.layers)):  # a token that is alone takes its own value
            layer = self.model.layers[index]
            value = product(given, layer.projection(2), live.sequences, units=units_of(layer.attention_output))
            hidden, given = self._finish(index, value, hidden, live.sequences, rows=None, residual_rows=None)
        return given

    def _finish(
        self,
        index: int,
        context: Tensor,
        hidden: Tensor,
        count: Count,
        *,
        rows: Tensor | None,
        residual_rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The rest of a layer, of the rows that stay: hidden states, and what the next layer's attention is given."""
        layer = self.model.layers[index]
        last = index + 1 == len(self.model.layers)
        units, next_units = units_of(layer.ffn_in), None if last else units_of(self.model.layers[index + 1].qkv)
        which: Any = {"rows": rows, "residual_rows": residual_rows}
        if not layer.pre_norm:
            assert layer.attention_norm is not None  # of post-norm layers
            attended, given = normed_product(
                context, layer.attention_output, hidden, layer.attention_norm, count, **which, units=units
            )
            inner = _inner(layer, given, count)
            return normed_product(inner, layer.ffn_out, attended, layer.output_norm, count, units=next_units)
        follows = self.model.final_norm if last else self.model.layers[index + 1].attention_norm
        assert follows is not None  # of pre-norm models
        attended, given = summed_product(
            context, layer.attention_output, hidden, layer.output_norm, count, **which, units=units
        )
        return summed_product(_inner(layer, given, count), layer.ffn_out, attended, follows, count, units=next_units)

    def _head(self, read: Tensor, count: Count) -> Tensor:
        """What is read (rows, width) -> (rows, outputs) in float32; `count` of the rows mean something."""
        head = self.model.head
        if head.dense is not None:
            read = product(read.to(head.dense.weight.dtype), head.dense, count)
        if head.activation is not None:
            read = head.activation(read)
        read = normed(read, head.norm, count)
        if head.output is not None:
            tile, _ = plan(count.expected, head.output.weight)
            # As one part, because parts are float32: so are outputs.
            parts = linear_in_parts(read, head.output.weight, parts=1, count=count.on_device, tile=tile)
            read = parts[0] + head.output.bias
        return head.shaped(read.float()).contiguous()


def _projected(layer: GpuLayer, given: Tensor, affine: Affine, live: Live) -> Tensor:
    """Some of queries, keys and values, the last of which are values, as attention takes them."""
    if layer.turns is None:
        return product(given, affine, live.tokens)
    turns = Turns(live.positions, *layer.turns, columns=len(affine.bias) - len(layer.qkv.bias) // 3)
    return turned_product(given, affine, turns, live.tokens)


def _inner(layer: GpuLayer, values: Tensor, count: Count) -> Tensor:
    """What the feed-forward narrows again: (capacity, inner width)."""
    units = units_of(layer.ffn_out)
    if layer.other is None and layer.gated:
        return gated_product(values, layer.ffn_in, count, activation=layer.activation, units=units)
    if layer.other is None:
        return product(values, layer.ffn_in, count, activation=layer.activation, units=units)
    states, *gate = product(values, layer.ffn_in, count).chunk(2 if layer.gated else 1, dim=-1)
    return layer.other(states) * gate[0] if gate else layer.other(states)
