"""BERT and the families that share its layer: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA."""

from typing import Any

import torch
from torch import nn

from thresher.core.layer import LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts


def layers(base: Any) -> list[nn.Module]:
    return list(base.encoder.layer)


def _parts(layer: Any) -> LayerParts:
    attention = layer.attention
    return LayerParts(
        spec=LayerSpec(
            heads=attention.self.num_attention_heads,
            width=layer.intermediate.dense.in_features,
            ffn_width=layer.intermediate.dense.out_features,
            activation=layer.intermediate.intermediate_act_fn,
        ),
        qkv=(attention.self.query, attention.self.key, attention.self.value),
        attention_output=attention.output.dense,
        attention_norm=attention.output.LayerNorm,
        ffn_in=(layer.intermediate.dense,),
        ffn_out=layer.output.dense,
        output_norm=layer.output.LayerNorm,
        attention_dropout=attention.self.dropout.p,
        attention_output_dropout=attention.output.dropout.p,
        ffn_dropout=layer.output.dropout.p,
    )


def embeddings(base: Any) -> EmbeddingParts:
    embeddings = base.embeddings
    # RoBERTa and its relatives number positions from padding_idx + 1.
    offset = 0 if base.config.model_type in ("bert", "electra") else embeddings.padding_idx + 1
    return EmbeddingParts(
        word=embeddings.word_embeddings,
        position=embeddings.position_embeddings,
        token_type=embeddings.token_type_embeddings,
        norm=embeddings.LayerNorm,
        position_offset=offset,
        uncounted_id=None if offset == 0 else embeddings.padding_idx,
        projection=getattr(base, "embeddings_project", None),  # ELECTRA with narrow embeddings
    )


def head(model: Any) -> HeadParts:
    if model.config.model_type == "bert":
        pooler = model.bert.pooler
        return HeadParts(dense=pooler.dense, activation=pooler.activation, output=model.classifier)
    head = model.classifier
    return HeadParts(dense=head.dense, activation=getattr(head, "activation", torch.tanh), output=head.out_proj)


FAMILY = Family(
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers=layers,
    parts=_parts,
    embeddings=embeddings,
    head=head,
)
