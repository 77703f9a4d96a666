"""MPNet: a relative position bias, made once by the stock encoder from original positions and given to every layer.

Masked tokens keep their place in that bias, so it follows the original positions by itself.
"""

from typing import Any

import torch
from torch import Tensor, nn

from thresher.core.layer import POSITION_NAMES, POST_NORM, LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return list(base.encoder.layer)


def _parts(layer: Any) -> LayerParts:
    attention = layer.attention
    return LayerParts(
        spec=LayerSpec(
            heads=attention.attn.num_attention_heads,
            width=layer.intermediate.dense.in_features,
            ffn_width=layer.intermediate.dense.out_features,
            activation=layer.intermediate.intermediate_act_fn,
            positions="distance",
        ),
        qkv=(attention.attn.q, attention.attn.k, attention.attn.v),
        attention_output=attention.attn.o,
        attention_norm=attention.LayerNorm,
        ffn_in=(layer.intermediate.dense,),
        ffn_out=layer.output.dense,
        output_norm=layer.output.LayerNorm,
        attention_dropout=attention.attn.dropout.p,
        attention_output_dropout=attention.dropout.p,
        ffn_dropout=layer.output.dropout.p,
    )


def _position_bias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The stock encoder passes it right after the attention mask, or by name."""
    bias = args[0] if args else kwargs.get("position_bias")
    if not isinstance(bias, Tensor):
        raise RuntimeError("this version of transformers gives MPNet layers no position bias; thresher needs it")
    return bias


def _wrap(output: Tensor) -> tuple[Tensor]:
    return (output,)


def _distance_bias(base: Any, distances: Tensor) -> Tensor:
    """Bias of every head for key position minus query position: (...) -> (..., heads)."""
    buckets = base.encoder.relative_position_bucket(distances, num_buckets=base.config.relative_attention_num_buckets)
    bias: Tensor = base.encoder.relative_attention_bias(buckets)
    return bias


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.word_embeddings,
        position=base.embeddings.position_embeddings,
        token_type=None,
        norm=base.embeddings.LayerNorm,
        position_offset=base.embeddings.padding_idx + 1,
        uncounted_id=base.embeddings.padding_idx,
    )


def _head(model: Any) -> HeadParts:
    return HeadParts(dense=model.classifier.dense, activation=torch.tanh, output=model.classifier.out_proj)


FAMILY = Family(
    model_types=("mpnet",),
    layers=_layers,
    parts=_parts,
    embeddings=_embeddings,
    head=_head,
    features=frozenset({POST_NORM, POSITION_NAMES["distance"]}),
    distance_bias=_distance_bias,
    position_bias=_position_bias,
    wrap=_wrap,
)
