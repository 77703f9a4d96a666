"""RoBERTa with its norms before attention and feed-forward, and one more at the end."""

from typing import Any

from torch import nn

from thresher.core.layer import POSITION_NAMES, PRE_NORM, LayerSpec
from thresher.models.adapter import Family, LayerParts
from thresher.models.bert import embeddings, head, layers


def _parts(layer: Any) -> LayerParts:
    attention, inner = layer.attention, layer.intermediate
    return LayerParts(
        spec=LayerSpec(
            heads=attention.self.num_attention_heads,
            width=inner.dense.in_features,
            ffn_width=inner.dense.out_features,
            activation=inner.intermediate_act_fn,
            pre_norm=True,
        ),
        qkv=(attention.self.query, attention.self.key, attention.self.value),
        attention_output=attention.output.dense,
        attention_norm=attention.LayerNorm,
        ffn_in=(inner.dense,),
        ffn_out=layer.output.dense,
        output_norm=inner.LayerNorm,
        attention_dropout=attention.self.dropout.p,
        attention_output_dropout=attention.output.dropout.p,
        ffn_dropout=layer.output.dropout.p,
    )


def _final_norm(base: Any) -> nn.LayerNorm:
    norm: nn.LayerNorm = base.LayerNorm
    return norm


FAMILY = Family(
    model_types=("roberta-prelayernorm",),
    layers=layers,
    parts=_parts,
    embeddings=embeddings,
    head=head,
    features=frozenset({PRE_NORM, POSITION_NAMES["table"]}),
    final_norm=_final_norm,
)
