"""DistilBERT: no dropout after the attention's output projection."""

from typing import Any

import torch
from torch import nn

from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts


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


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.word_embeddings,
        position=base.embeddings.position_embeddings,
        token_type=None,
        norm=base.embeddings.LayerNorm,
        position_offset=0,
        uncounted_id=None,
        projection=None,
    )


def _head(model: Any) -> HeadParts:
    return HeadParts(dense=model.pre_classifier, activation=torch.relu, output=model.classifier)


FAMILY = Family(model_types=("distilbert",), layers=_layers, parts=_parts, embeddings=_embeddings, head=_head)
