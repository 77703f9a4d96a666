"""DistilBERT: no dropout after the attention's output projection."""

from typing import Any

import torch
from torch import nn

from thresher.core.layer import LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts


def _layers(base: Any) -> list[nn.Module]:
    return list(base.transformer.layer)


def _parts(layer: Any) -> LayerParts:
    return LayerParts(
        spec=LayerSpec(
            heads=layer.attention.n_heads,
            width=layer.ffn.lin1.in_features,
            ffn_width=layer.ffn.lin1.out_features,
            activation=layer.ffn.activation,
        ),
        qkv=(layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin),
        attention_output=layer.attention.out_lin,
        attention_norm=layer.sa_layer_norm,
        ffn_in=(layer.ffn.lin1,),
        ffn_out=layer.ffn.lin2,
        output_norm=layer.output_layer_norm,
        attention_dropout=layer.attention.dropout.p,
        attention_output_dropout=0.0,
        ffn_dropout=layer.ffn.dropout.p,
    )


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.word_embeddings,
        position=base.embeddings.position_embeddings,
        token_type=None,
        norm=base.embeddings.LayerNorm,
    )


def _head(model: Any) -> HeadParts:
    return HeadParts(dense=model.pre_classifier, activation=torch.relu, output=model.classifier)


FAMILY = Family(model_types=("distilbert",), layers=_layers, parts=_parts, embeddings=_embeddings, head=_head)
