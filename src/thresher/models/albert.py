"""ALBERT: a few layer modules run many times, so thresholds belong to passes and not to modules."""

from typing import Any

from torch import nn

from thresher.core.layer import LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return [layer for group in base.encoder.albert_layer_groups for layer in group.albert_layers]


def _sequence(base: Any) -> list[nn.Module]:
    groups, passes = base.encoder.albert_layer_groups, base.config.num_hidden_layers
    chosen = [groups[int(i / (passes / base.config.num_hidden_groups))] for i in range(passes)]
    return [layer for group in chosen for layer in group.albert_layers]


def _parts(layer: Any) -> LayerParts:
    return LayerParts(
        spec=LayerSpec(
            heads=layer.attention.num_attention_heads,
            width=layer.ffn.in_features,
            ffn_width=layer.ffn.out_features,
            activation=layer.activation,
        ),
        qkv=(layer.attention.query, layer.attention.key, layer.attention.value),
        attention_output=layer.attention.dense,
        attention_norm=layer.attention.LayerNorm,
        ffn_in=(layer.ffn,),
        ffn_out=layer.ffn_output,
        output_norm=layer.full_layer_layer_norm,
        attention_dropout=layer.attention.attention_dropout.p,
        attention_output_dropout=layer.attention.output_dropout.p,
        ffn_dropout=0.0,
    )


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.word_embeddings,
        position=base.embeddings.position_embeddings,
        token_type=base.embeddings.token_type_embeddings,
        norm=base.embeddings.LayerNorm,
        projection=base.encoder.embedding_hidden_mapping_in,
    )


def _head(model: Any) -> HeadParts:
    return HeadParts(dense=model.albert.pooler, activation=model.albert.pooler_activation, output=model.classifier)


FAMILY = Family(
    model_types=("albert",), layers=_layers, parts=_parts, embeddings=_embeddings, head=_head, sequence=_sequence
)
