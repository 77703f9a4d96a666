"""The layer loop on the GPU. It never waits for the device; what follows a pruning may, and is the caller's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from thresher.config import PruneConfig
from thresher.engine.cuda.batch import Inputs
from thresher.engine.cuda.model import GpuLayer, GpuModel
from thresher.engine.cuda.products import Count, normed_product, product
from thresher.engine.inputs import alone_in
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

    def __init__(self, model: GpuModel, thresholds: Sequence[float], config: PruneConfig) -> None:
        self.model, self.thresholds, self.config = model, thresholds, config

    @property
    def alone(self) -> int:
        """The layer that passes on first tokens only."""
        return alone_in(self.thresholds, self.config)

    @property
    def pruning_layers(self) -> list[int]:
        """Layers that read scores. Where first tokens only are passed on, none is needed."""
        return [index for index, threshold in enumerate(self.thresholds[: self.alone]) if threshold > 0]

    def __call__(self, inputs: Inputs, live: Live, settle: Settle) -> Tensor:
        """Logits (sequences, outputs) in float32."""
        hidden, layers, alone, config = self._embedded(inputs, live), self.model.layers, self.alone, self.config
        for layer, threshold in zip(layers[:alone], self.thresholds[:alone], strict=True):
            qkv = product(hidden, layer.qkv, live.tokens)
            context, received = attention(
                qkv,
                live.cu_seqlens,
                heads=layer.heads,
                max_length=live.max_length,
                score=config.score if threshold > 0 else None,
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
                    scale=config.scale,
                    score=config.score,
                )
                live, rows = settle(kept, live)
            hidden = _finish(layer, context, hidden, live.tokens, rows=rows, residual_rows=rows)
        hidden = self._of_first_tokens(layers[alone], hidden, live)
        for layer in layers[alone + 1 :]:  # a token that is alone takes its own value
            value = product(hidden, layer.projection(2), live.sequences)
            hidden = _finish(layer, value, hidden, live.sequences, rows=None, residual_rows=None)
        return self._head(hidden, live.sequences)

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

    def _of_first_tokens(self, layer: GpuLayer, hidden: Tensor, live: Live) -> Tensor:
        """The layer that passes on these only: (sequences, width)."""
        first = live.cu_seqlens[:-1]
        query = product(hidden, layer.projection(0), live.sequences, rows=first)
        key_value = product(hidden, layer.projection(1, 2), live.tokens)
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
