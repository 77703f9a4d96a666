"""ModernBERT (also Ettin, gte-modernbert, granite-r2): pre-norm, rotary, gated, with layers that see a window only.

The stock code makes windows from places in the tensors, so a shortened input would move them: the layers here go by
original positions.
"""

from typing import Any

from torch import nn

from thresher.core.layer import GATED, POSITION_NAMES, PRE_NORM, WINDOW, LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts, plain_rotary

LOCAL, KINDS = "sliding_attention", ("full_attention", "sliding_attention")


def _layers(base: Any) -> list[nn.Module]:
    return list(base.layers)


def _parts(layer: Any) -> LayerParts:
    config, kind = layer.config, layer.attention_type
    return LayerParts(
        spec=LayerSpec(
            heads=config.num_attention_heads,
            width=layer.mlp.Wi.in_features,
            ffn_width=layer.mlp.Wo.in_features,
            activation=layer.mlp.act,
            pre_norm=True,
            gated=True,
            positions="rotary",
            rotary_base=config.rope_parameters[kind]["rope_theta"],
            window=config.sliding_window if kind == LOCAL else None,
        ),
        qkv=(layer.attn.Wqkv,),
        attention_output=layer.attn.Wo,
        attention_norm=layer.attn_norm,
        ffn_in=(layer.mlp.Wi,),
        ffn_out=layer.mlp.Wo,
        output_norm=layer.mlp_norm,
        attention_dropout=layer.attn.attention_dropout,
        attention_output_dropout=config.attention_dropout,
        ffn_dropout=0.0,
        inner_dropout=layer.mlp.drop.p,
    )


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.tok_embeddings,
        token_type=None,
        norm=base.embeddings.norm,
        longest=base.config.max_position_embeddings,
    )


def _head(model: Any, means: str = "classes") -> HeadParts:
    head = model.head
    return HeadParts(dense=head.dense, activation=head.act, norm=head.norm, output=model.classifier)


def _final_norm(base: Any) -> nn.LayerNorm:
    norm: nn.LayerNorm = base.final_norm
    return norm


def _refusal(config: Any) -> str | None:
    for kind in sorted(set(config.layer_types)):
        if kind not in KINDS:
            return f"layers of type {kind!r} are not known, only {' and '.join(KINDS)}"
        if reason := plain_rotary(config.rope_parameters[kind]):
            return reason
    return None


FAMILY = Family(
    model_types=("modernbert",),
    layers=_layers,
    parts=_parts,
    embeddings=_embeddings,
    head=_head,
    features=frozenset({PRE_NORM, GATED, WINDOW, POSITION_NAMES["rotary"]}),
    token_head=_head,
    final_norm=_final_norm,
    refusal=_refusal,
)
