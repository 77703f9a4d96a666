"""The layer loop on the GPU. It never waits for the device; what follows a pruning may: see live.py."""

import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.cuda.batch import Inputs
from thresher.engine.cuda.live import Counts, Live
from thresher.engine.cuda.model import GpuLayer, GpuModel
from thresher.engine.cuda.products import Count, normed_product, product
from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.behind import leave_behind, mean_behind
from thresher.engine.kernels.embeddings import embed
from thresher.engine.kernels.first import attend_first
from thresher.engine.kernels.gate import gated
from thresher.engine.kernels.linear import linear_in_parts, plan
from thresher.engine.kernels.prune import Kept, prune
from thresher.engine.kernels.rotary import rotate_


class Forward:
    """One model with its plan."""

    def __init__(self, model: GpuModel, plan: PruningPlan) -> None:
        self.model, self.plan = model, plan

    def __call__(self, inputs: Inputs, counts: Counts) -> Tensor:
        """The head's outputs (sequences, outputs) in float32, or (capacity, outputs) where it reads tokens."""
        hidden, live, plan = self._embedded(inputs, counts.live), counts.live, self.plan
        tokens, starts = live.tokens, live.cu_seqlens
        states = torch.empty_like(hidden) if plan.restores else None
        for layer, threshold in zip(self.model.layers[: plan.alone], plan.thresholds, strict=False):
            context, received = self._attend(layer, hidden, live, scored=threshold > 0)
            rows = None
            if received is not None:
                kept = self._prune(received, live, threshold)
                if states is not None:
                    leave_behind(states, hidden, live.cu_seqlens, live.positions, starts, keep=kept.keep)
                live, rows = counts.settle(kept, live)
            hidden = _finish(layer, context, hidden, live.tokens, rows=rows, residual_rows=rows)
        if states is None:
            return self._head(self._of_first_tokens(hidden, live), live.sequences)
        leave_behind(states, hidden, live.cu_seqlens, live.positions, starts, keep=None)
        if plan.reads == "tokens":
            return self._head(states, tokens)
        return self._head(mean_behind(states, starts), live.sequences)

    def _attend(self, layer: GpuLayer, hidden: Tensor, live: Live, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        """Context (capacity, width), and what each token received in every head where it is asked for."""
        qkv = product(hidden, layer.qkv, live.tokens)
        _rotate(layer, qkv, live)
        return attention(
            qkv,
            live.cu_seqlens,
            heads=layer.heads,
            max_length=live.max_length,
            score=self.plan.score if scored else None,
            positions=live.positions,
            distance_bias=self.model.distance_bias,
            mostly_long=live.mostly_long,
        )

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

    def _of_first_tokens(self, hidden: Tensor, live: Live) -> Tensor:
        """The layers that pass on these only: (sequences, width)."""
        layer, *rest = self.model.layers[self.plan.alone :]
        first = live.cu_seqlens[:-1]
        query = product(hidden, layer.projection(0), live.sequences, rows=first)
        key_value = product(hidden, layer.projection(1, 2), live.tokens)
        _rotate(layer, key_value, live)  # first tokens' queries are at position 0, and stay
        context = attend_first(
            query,
            key_value,
            live.cu_seqlens,
            heads=layer.heads,
            positions=live.positions,
            distance_bias=self.model.distance_bias,
        )
        hidden = _finish(layer, context, hidden, live.sequences, rows=None, residual_rows=first)
        for layer in rest:  # a token that is alone takes its own value
            value = product(hidden, layer.projection(2), live.sequences)
            hidden = _finish(layer, value, hidden, live.sequences, rows=None, residual_rows=None)
        return hidden

    def _head(self, read: Tensor, count: Count) -> Tensor:
        """What is read (rows, width) -> (rows, outputs) in float32; `count` of the rows mean something."""
        head = self.model.head
        if head.dense is not None:
            read = product(read.to(head.dense.weight.dtype), head.dense, count)
        if head.activation is not None:
            read = head.activation(read)
        if head.output is not None:
            tile, _ = plan(count.expected, head.output.weight)
            # As one part, because parts are float32: so are outputs.
            parts = linear_in_parts(read, head.output.weight, parts=1, count=count.on_device, tile=tile)
            read = parts[0] + head.output.bias
        return head.shaped(read.float()).contiguous()


def _rotate(layer: GpuLayer, projected: Tensor, live: Live) -> None:
    """Queries and keys, or keys, in place: all parts (capacity, parts x width) but the last, which are values."""
    if layer.turns is not None:
        columns = projected.shape[1] - len(layer.qkv.bias) // 3
        rotate_(projected, live.positions, *layer.turns, columns=columns, count=live.tokens.on_device)


def _finish(
    layer: GpuLayer,
    context: Tensor,
    hidden: Tensor,
    count: Count,
    *,
    rows: Tensor | None,
    residual_rows: Tensor | None,
) -> Tensor:
    """Output projection, residual and norm, FFN, residual and norm, of the rows that stay."""
    attended = normed_product(
        context,
        layer.attention_output,
        hidden,
        layer.attention_norm,
        count,
        rows=rows,
        residual_rows=residual_rows,
    )
    inner = product(attended, layer.ffn_in, count, activation="none" if layer.gated else layer.activation)
    if layer.other is not None:
        states, *gate = inner.chunk(2 if layer.gated else 1, dim=-1)
        inner = layer.other(states) * gate[0] if gate else layer.other(states)
    elif layer.gated:
        inner = gated(inner, activation=layer.activation, count=count.on_device)
    return normed_product(inner, layer.ffn_out, attended, layer.output_norm, count)
