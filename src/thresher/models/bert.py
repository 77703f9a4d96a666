"""BERT and the families that share its layer: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA."""

from typing import Any

from torch import nn

from thresher.models.adapter import Family, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return list(base.encoder.layer)


def _parts(layer: Any) -> LayerParts:
    attention = layer.attention
    return LayerParts(
        heads=attention.self.num_attention_heads,
        query=attention.self.query,
        key=attention.self.key,
        value=attention.self.value,
        attention_output=attention.output.dense,
        attention_norm=attention.output.LayerNorm,
        ffn_in=layer.intermediate.dense,
        activation=layer.intermediate.intermediate_act_fn,
        ffn_out=layer.output.dense,
        output_norm=layer.output.LayerNorm,
        attention_dropout=attention.self.dropout.p,
        attention_output_dropout=attention.output.dropout.p,
        ffn_dropout=layer.output.dropout.p,
    )


FAMILY = Family(
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers=_layers,
    parts=_parts,
)
