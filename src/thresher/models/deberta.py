"""DeBERTa-v2 and v3: attention adds products with embeddings of distances, and v2 has a convolution beside layer 0."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from thresher.core.layer import CONVOLUTION, POSITION_NAMES, POST_NORM, LayerSpec
from thresher.core.places import Relative
from thresher.models.adapter import ConvolutionParts, EmbeddingParts, Family, HeadParts, LayerParts

TERMS = {"c2p": "queries", "p2c": "keys"}  # what is multiplied with embeddings of distances
LONGEST = 8192  # tokens of a text, where no table of positions sets an end: distances are bucketed ever more coarsely


def _layers(base: Any) -> list[nn.Module]:
    return list(base.encoder.layer)


def _parts(layer: Any) -> LayerParts:
    attention = layer.attention.self
    kinds = [kind for kind in TERMS if kind in attention.pos_att_type]
    relative = bool(attention.relative_attention and kinds)
    width = attention.all_head_size // attention.num_attention_heads
    return LayerParts(
        spec=LayerSpec(
            heads=attention.num_attention_heads,
            width=layer.intermediate.dense.in_features,
            ffn_width=layer.intermediate.dense.out_features,
            activation=layer.intermediate.intermediate_act_fn,
            positions="disentangled" if relative else "table",
            # The stock code takes the root in float32.
            root=float(torch.tensor(float(width * (1 + len(kinds)))).sqrt()),
            relative_rows=2 * attention.pos_ebd_size if relative else 0,
            relative_by=tuple(TERMS[kind] for kind in kinds),
        ),
        qkv=(attention.query_proj, attention.key_proj, attention.value_proj),
        attention_output=layer.attention.output.dense,
        attention_norm=layer.attention.output.LayerNorm,
        ffn_in=(layer.intermediate.dense,),
        ffn_out=layer.output.dense,
        output_norm=layer.output.LayerNorm,
        attention_dropout=attention.dropout.p,
        attention_output_dropout=layer.attention.output.dropout.p,
        ffn_dropout=layer.output.dropout.p,
        distance_dropout=attention.pos_dropout.p if relative else 0.0,
    )


def _distances(base: Any) -> Tensor | None:
    """The embeddings of distances (rows, width) that the encoder gives every layer."""
    embeddings: Tensor | None = base.encoder.get_rel_embedding()
    return embeddings


def _relative(layer: Any, distances: Tensor) -> Relative:
    """What a layer makes of the embeddings of distances."""
    attention, span = layer.attention.self, layer.attention.self.pos_ebd_size
    shared = attention.share_att_key

    def projected(kind: str, own: str, other: str) -> Tensor | None:
        if kind not in attention.pos_att_type:
            return None
        linear = getattr(attention, other if shared else own)
        rows: Tensor = linear(distances[: 2 * span])
        return rows.view(2 * span, attention.num_attention_heads, -1).transpose(0, 1)

    return Relative(
        keys=projected("c2p", "pos_key_proj", "key_proj"),
        queries=projected("p2c", "pos_query_proj", "query_proj"),
        rows=rows_of_distances(
            span,
            attention.position_buckets,
            attention.max_relative_positions,
            longest=_longest(layer.attention.config),
            device=distances.device,
        ),
    )


@lru_cache(maxsize=16)
def rows_of_distances(span: int, buckets: int, most: int, *, longest: int, device: torch.device) -> Tensor:
    """(distances,) the row of every distance, query minus key position; those beyond the ends are like the ends, or are
    in no text of at most `longest` tokens.

    An odd number of buckets is used up only far beyond `most`. Kept on the device, because a step that is recorded into
    a CUDA graph cannot copy from the host.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    far = 2 * most
    while True:
        found = torch.arange(-far, far + 1)
        if buckets > 0:
            found = make_log_bucket_position(found, buckets, most).long()
        rows = (found + span).clamp(0, 2 * span - 1)
        if far >= longest or (int(rows[0]) == 0 and int(rows[-1]) == 2 * span - 1):
            return rows.to(device)
        far *= 2


def _longest(config: Any) -> int:
    return max(LONGEST, int(config.max_position_embeddings))


def _convolution(base: Any) -> ConvolutionParts | None:
    from transformers.activations import ACT2FN

    module = base.encoder.conv
    if module is None:
        return None
    return ConvolutionParts(module, module.conv, ACT2FN[module.conv_act], module.LayerNorm, module.dropout.p)


def _embeddings(base: Any) -> EmbeddingParts:
    embeddings = base.embeddings
    return EmbeddingParts(
        word=embeddings.word_embeddings,
        position=embeddings.position_embeddings,
        token_type=embeddings.token_type_embeddings,
        norm=embeddings.LayerNorm,
        longest=_longest(base.config),
        usual=base.config.max_position_embeddings,
    )


def _head(model: Any) -> HeadParts:
    from transformers.activations import ACT2FN

    activation = ACT2FN[model.config.pooler_hidden_act]
    return HeadParts(dense=model.pooler.dense, activation=activation, output=model.classifier)


def _refusal(config: Any) -> str | None:
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        return f"embeddings of width {config.embedding_size} in a model of width {config.hidden_size}"
    size = getattr(config, "conv_kernel_size", 0)
    if size > 0 and size % 2 == 0:
        return f"a convolution of even size {size}"
    buckets, most = getattr(config, "position_buckets", -1), getattr(config, "max_relative_positions", -1)
    most = most if most > 0 else config.max_position_embeddings
    if getattr(config, "relative_attention", False) and buckets > 0 and not 0 < buckets // 2 < most - 1:
        return (
            f"position_buckets = {buckets} with distances of up to {most}: buckets must be 2 at least, and half of "
            f"them fewer than {most - 1}, or far tokens count as nearer than near ones"
        )
    head = math.floor(config.hidden_size / config.num_attention_heads)
    if getattr(config, "attention_head_size", head) != head:
        return f"heads of width {config.attention_head_size} do not fill the model's {config.hidden_size}"
    return None


def _wrap(output: Tensor) -> tuple[Tensor, None]:
    return output, None


FAMILY = Family(
    model_types=("deberta-v2",),
    layers=_layers,
    parts=_parts,
    embeddings=_embeddings,
    head=_head,
    features=frozenset({POST_NORM, CONVOLUTION, POSITION_NAMES["table"], POSITION_NAMES["disentangled"]}),
    distances=_distances,
    relative=_relative,
    convolution=_convolution,
    refusal=_refusal,
    wrap=_wrap,
)
