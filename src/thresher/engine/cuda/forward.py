"""The layer loop on the GPU. It never waits for the device; what follows a pruning may, and is the caller's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from thresher.engine.cuda.batch import Inputs
from thresher.engine.cuda.model import GpuLayer, GpuModel
from thresher.engine.cuda.products import Count, normed_product, product
from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.embeddings import embed
from thresher.engine.kernels.first import attend_first
from thresher.engine.kernels.linear import linear_in_parts, plan
from thresher.engine.kernels.prune import Kept, prune


@dataclass(frozen=True)
class Live:
    """The tokens that are left. positions: (capacity,) int32, protected: (capacity,) bool, cu_seqlens: int32."""

    cu_seqlens: Tensor
    positions: Tensor
    protected: Tensor
    max_length: int
    tokens: Count
    sequences: Count

    @property
    def mostly_long(self) -> bool:
        return self.tokens.expected > 64 * self.sequences.expected


# After a pruning: what is live now, and the old rows of the new ones (None: all stayed where they were).
Settle = Callable[[Kept, Live], tuple[Live, Tensor | None]]


class Forward:
    """One model with its thresholds."""

    def __init__(self, model: GpuModel, thresholds: Sequence[float], *, scale: str, score: str) -> None:
        self.model, self.thresholds, self.scale, self.score = model, thresholds, scale, score

    @property
    def pruning_layers(self) -> list[int]:
        """Layers that read scores. The last needs none, as it passes on the first token only."""
        return [index for index, threshold in enumerate(self.thresholds[:-1]) if threshold > 0]

    def __call__(self, inputs: Inputs, live: Live, settle: Settle) -> Tensor:
        """Logits (sequences, outputs) in float32."""
        hidden = self._embedded(inputs, live)
        for layer, threshold in zip(self.model.layers[:-1], self.thresholds[:-1], strict=True):
            qkv = product(hidden, layer.qkv, live.tokens)
            context, received = attention(
                qkv,
                live.cu_seqlens,
                heads=layer.heads,
                max_length=live.max_length,
                score=self.score if threshold > 0 else None,
                positions=live.positions,
                distance_bias=self.model.distance_bias,
                mostly_long=live.mostly_long,
            )
            rows = None
            if received is not None:
                kept = prune(
                    received,
                    live.cu_seqlens,
                    live.positions,
                    live.protected,
                    threshold=threshold,
                    max_length=live.max_length,
                    scale=self.scale,
                    score=self.score,
                )
                live, rows = settle(kept, live)
            hidden = _finish(layer, context, hidden, live.tokens, rows=rows, residual_rows=rows)
        return self._head(self._last(self.model.layers[-1], hidden, live), live.sequences)

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

    def _last(self, layer: GpuLayer, hidden: Tensor, live: Live) -> Tensor:
        """The first tokens' last states (sequences, width): all that the head reads."""
        for_query, for_key_value = layer.first_parts(self.model.width)
        first = live.cu_seqlens[:-1]
        query = product(hidden, for_query, live.sequences, rows=first)
        key_value = product(hidden, for_key_value, live.tokens)
        context = attend_first(
            query,
            key_value,
            live.cu_seqlens,
            heads=layer.heads,
            positions=live.positions,
            distance_bias=self.model.distance_bias,
        )
        return _finish(layer, context, hidden, live.sequences, rows=None, residual_rows=first)

    def _head(self, hidden: Tensor, count: Count) -> Tensor:
        model = self.model
        pooled = model.head_activation(product(hidden, model.head_dense, count))
        tile, _ = plan(count.expected, model.head_output.weight)
        # As one part, because parts are float32: so are logits.
        logits = linear_in_parts(pooled, model.head_output.weight, parts=1, count=count.on_device, tile=tile)[0]
        return logits + model.head_output.bias


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
    inner = product(attended, layer.ffn_in, count, activation=layer.activation)
    if layer.other is not None:
        inner = layer.other(inner)
    return normed_product(inner, layer.ffn_out, attended, layer.output_norm, count)
