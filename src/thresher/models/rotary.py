"""NomicBERT and GTE: post-norm layers that rotate queries and keys, with a gated feed-forward."""

from typing import Any

from torch import nn

from thresher.core.layer import GATED, POSITION_NAMES, POST_NORM, LayerSpec
from thresher.models.adapter import EmbeddingParts, Family, HeadParts, LayerParts, plain_rotary


def _layers(base: Any) -> list[nn.Module]:
    return list(base.layers)


def _parts(layer: Any) -> LayerParts:
    attention, inner, config = layer.self_attn, layer.mlp, layer.self_attn.config
    return LayerParts(
        spec=LayerSpec(
            heads=config.num_attention_heads,
            width=inner.gate_proj.in_features,
            ffn_width=inner.gate_proj.out_features,
            activation=inner.act_fn,
            gated=True,
            positions="rotary",
            rotary_base=config.rope_parameters["rope_theta"],
        ),
        qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
        attention_output=attention.o_proj,
        attention_norm=layer.post_attention_layernorm,
        ffn_in=(inner.gate_proj, inner.up_proj),
        ffn_out=inner.down_proj,
        output_norm=layer.post_mlp_layernorm,
        attention_dropout=attention.attention_dropout,
        attention_output_dropout=layer.post_attention_dropout.p,
        ffn_dropout=layer.post_mlp_dropout.p,
        inner_dropout=inner.dropout.p if hasattr(inner, "dropout") else 0.0,  # of GTE
    )


def _embeddings(base: Any) -> EmbeddingParts:
    return EmbeddingParts(
        word=base.embeddings.word_embeddings,
        token_type=base.embeddings.token_type_embeddings,
        norm=base.embeddings.LayerNorm,
        longest=base.config.max_position_embeddings,
    )


def _head(model: Any) -> HeadParts:
    pooler = model.base_model.pooler
    return HeadParts(dense=pooler.dense, activation=pooler.activation, output=model.classifier)


def _refusal(config: Any) -> str | None:
    if getattr(config, "head_dim", None) not in (None, config.hidden_size // config.num_attention_heads):
        return f"heads of width {config.head_dim} do not fill the model's {config.hidden_size}"
    return plain_rotary(config.rope_parameters)


FAMILY = Family(
    model_types=("nomic_bert", "gte"),
    layers=_layers,
    parts=_parts,
    embeddings=_embeddings,
    head=_head,
    features=frozenset({POST_NORM, GATED, POSITION_NAMES["rotary"]}),
    refusal=_refusal,
)
