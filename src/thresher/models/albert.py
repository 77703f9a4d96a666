"""ALBERT: a few layer modules run many times, so thresholds belong to passes and not to modules."""

from typing import Any

from torch import nn

from thresher.models.adapter import Family, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return [layer for group in base.encoder.albert_layer_groups for layer in group.albert_layers]


def _passes(base: Any) -> int:
    return int(base.config.num_hidden_layers * base.config.inner_group_num)


def _parts(layer: Any) -> LayerParts:
    return LayerParts(
        heads=layer.attention.num_attention_heads,
        query=layer.attention.query,
        key=layer.attention.key,
        value=layer.attention.value,
        attention_output=layer.attention.dense,
        attention_norm=layer.attention.LayerNorm,
        ffn_in=layer.ffn,
        activation=layer.activation,
        ffn_out=layer.ffn_output,
        output_norm=layer.full_layer_layer_norm,
        attention_dropout=layer.attention.attention_dropout.p,
        attention_output_dropout=layer.attention.output_dropout.p,
        ffn_dropout=0.0,
    )


FAMILY = Family(model_types=("albert",), layers=_layers, parts=_parts, passes=_passes)
