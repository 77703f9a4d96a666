"""DistilBERT: no dropout after the attention's output projection."""

from typing import Any

from torch import nn

from thresher.models.adapter import Family, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return list(base.transformer.layer)


def _parts(layer: Any) -> LayerParts:
    return LayerParts(
        heads=layer.attention.n_heads,
        query=layer.attention.q_lin,
        key=layer.attention.k_lin,
        value=layer.attention.v_lin,
        attention_output=layer.attention.out_lin,
        attention_norm=layer.sa_layer_norm,
        ffn_in=layer.ffn.lin1,
        activation=layer.ffn.activation,
        ffn_out=layer.ffn.lin2,
        output_norm=layer.output_layer_norm,
        attention_dropout=layer.attention.dropout.p,
        attention_output_dropout=0.0,
        ffn_dropout=layer.ffn.dropout.p,
    )


FAMILY = Family(model_types=("distilbert",), layers=_layers, parts=_parts)
