"""The readable twin: one sequence at a time, tokens that lose are really removed, nothing is ever masked.

It follows the definition in plain words and shares no code with the package but the table of where weights are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thresher.models.adapter import LayerParts
from thresher.models.registry import family_of


@dataclass
class Dropped:
    """hidden: (survivors, width); kept: original positions left by each layer; scores: by original position; left:
    (tokens, width), what each token was when it entered the layer that removed it, or at the end."""

    hidden: Tensor
    kept: list[list[int]]
    scores: list[dict[int, float]]
    left: Tensor


@torch.no_grad()
def physically_dropped(
    model: Any,
    input_ids: Tensor,
    thresholds: Sequence[float],
    *,
    protected: Sequence[int] = (0,),
    scale: str = "relative",
    by: str = "attention",
    one_in: int = 1,
    given: list[list[int]] | None = None,
    renumber: bool = False,
    rejoin: int = 0,
) -> Dropped:
    """Run one sequence (tokens,) through the encoder and remove tokens layer by layer.

    `one_in`: only tokens at such places are asked what they read, or at 0 the first alone. `given` replaces the
    decisions (which tokens each layer keeps), `renumber` gives survivors new positions, which
    is wrong for a model with a relative position bias. In the last `rejoin` layers all tokens are back.
    """
    hidden, bias = _entry(model, input_ids)
    beside = _convolved(model, hidden)
    positions = list(range(len(input_ids)))
    kept, scores, left = [], [], hidden.clone()
    steps = _layers_in_order(model)
    for layer, parts in enumerate(steps):
        whole = layer >= len(steps) - rejoin
        if whole:
            left[positions] = hidden
            hidden, positions = left.clone(), list(range(len(input_ids)))
        tokens = len(positions)
        left[positions] = hidden
        where = torch.arange(tokens) if renumber else torch.tensor(positions)
        given_to_attention = parts.attention_norm(hidden) if parts.spec.pre_norm else hidden
        query, key, value = (
            part.view(tokens, parts.spec.heads, -1).transpose(0, 1)
            for part in torch.cat([linear(given_to_attention) for linear in parts.qkv], dim=-1).chunk(3, dim=-1)
        )
        if parts.spec.rotary_base is not None:
            query, key = (_turned(part, where, parts.spec.rotary_base) for part in (query, key))
        logits = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        if model.config.model_type == "deberta-v2":
            logits = _disentangled(model, layer, query, key, where)
        if bias is not None:
            logits = logits + bias[:, where][:, :, where]
        if parts.spec.window is not None:
            far = (where[:, None] - where[None, :]).abs() > parts.spec.window
            logits = logits.masked_fill(far, -math.inf)
        probabilities = torch.softmax(logits, dim=-1)
        asked = [i for i in range(tokens) if (positions[i] % one_in if one_in else positions[i]) == 0]
        received = tokens * probabilities.mean(dim=0)[asked].mean(dim=0)
        if by == "value":  # each head's share by what it carries, and then 1 on average
            received = (probabilities[:, asked].sum(dim=1) * value.square().sum(dim=-1).sqrt()).sum(dim=0)
            received = received / received.mean()
        score = received if scale == "relative" else received / tokens

        stays = [i for i in range(tokens) if score[i] > thresholds[layer] or positions[i] in protected]
        if not stays:
            stays = [int(score.argmax())]
        if whole:
            stays = list(range(tokens))
        elif given is not None:
            stays = [i for i in range(tokens) if positions[i] in given[layer]]

        context = (probabilities @ value).transpose(0, 1).reshape(tokens, -1)[stays]
        hidden = _finished(parts, context, hidden[stays])
        if layer == 0 and beside is not None:
            hidden = model.base_model.encoder.conv.LayerNorm(hidden + beside[stays])
        scores.append(dict(zip(positions, score.tolist(), strict=True)))
        positions = [positions[i] for i in stays]
        kept.append(positions)
    left[positions] = hidden
    named = "LayerNorm" if model.config.model_type == "roberta-prelayernorm" else "final_norm"
    final_norm = getattr(model.base_model, named, torch.nn.Identity())
    return Dropped(final_norm(hidden), kept, scores, final_norm(left))


def _finished(parts: LayerParts, context: Tensor, hidden: Tensor) -> Tensor:
    """The layer after attention, word by word as the papers have it."""

    def feed_forward(values: Tensor) -> Tensor:
        wide = torch.cat([linear(values) for linear in parts.ffn_in], dim=-1)
        if parts.spec.gated:
            half = wide.shape[-1] // 2
            return parts.ffn_out(parts.spec.activation(wide[:, :half]) * wide[:, half:])
        return parts.ffn_out(parts.spec.activation(wide))

    mixed = parts.attention_output(context) + hidden
    if parts.spec.pre_norm:
        return mixed + feed_forward(parts.output_norm(mixed))
    attended = parts.attention_norm(mixed)
    return parts.output_norm(feed_forward(attended) + attended)


def _disentangled(model: Any, layer: int, query: Tensor, key: Tensor, where: Tensor) -> Tensor:
    """DeBERTa's logits (heads, tokens, tokens): content to content, content to position and position to content, over
    the root of so many times the head's width."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    config, base = model.config, model.base_model
    own, heads = base.encoder.layer[layer].attention.self, query.shape[0]
    embeddings = base.encoder.LayerNorm(base.encoder.rel_embeddings.weight)
    shared, kinds = config.share_att_key, config.pos_att_type
    span, bucket = config.position_buckets, where[:, None] - where[None, :]
    if span > 0:
        bucket = make_log_bucket_position(bucket, span, config.max_relative_positions).long()
    else:
        span = config.max_relative_positions
    to_key = (bucket + span).clamp(0, 2 * span - 1)  # by query minus key
    to_query = (-bucket + span).clamp(0, 2 * span - 1)  # row: the key, column: the query; as the stock code has it
    logits = torch.einsum("hqd,hkd->hqk", query, key)
    if "c2p" in kinds:
        pos_key = (own.key_proj if shared else own.pos_key_proj)(embeddings).view(len(embeddings), heads, -1)
        logits = logits + torch.einsum("hqd,qkhd->hqk", query, pos_key[to_key])
    if "p2c" in kinds:
        pos_query = (own.query_proj if shared else own.pos_query_proj)(embeddings).view(len(embeddings), heads, -1)
        logits = logits + torch.einsum("hkd,kqhd->hqk", key, pos_query[to_query])
    return logits / float(torch.tensor((1.0 + len(kinds)) * query.shape[-1]).sqrt())


def _convolved(model: Any, hidden: Tensor) -> Tensor | None:
    """What v2's convolution makes of the embeddings, token by token with its neighbours."""
    module = getattr(getattr(model.base_model, "encoder", None), "conv", None)
    if module is None:
        return None
    size, tokens, groups = module.conv.kernel_size[0], len(hidden), module.conv.groups
    padded = torch.nn.functional.pad(hidden, (0, 0, size // 2, size // 2))
    windows = torch.stack([padded[start : start + tokens] for start in range(size)], dim=-1)  # (tokens, width, size)
    found = [
        torch.einsum("tis,ois->to", given, weight)
        for given, weight in zip(windows.chunk(groups, dim=1), module.conv.weight.chunk(groups), strict=True)
    ]
    return torch.tanh(torch.cat(found, dim=-1) + module.conv.bias)


def _turned(states: Tensor, where: Tensor, base: float) -> Tensor:
    """(heads, tokens, head width): pair i, of places i and i + half, turns by position x base^(-2i / head width).

    Angles, cosines and sines are in float32, as the stock models have them."""
    half = states.shape[-1] // 2
    slow = 1.0 / (base ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half)))
    angles = where.float()[:, None] * slow
    cosine, sine = angles.cos().double(), angles.sin().double()
    low, high = states[..., :half], states[..., half:]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def _layers_in_order(model: Any) -> list[LayerParts]:
    """The parts of every pass in the order a token meets them; ALBERT meets the same group of layers many times."""
    family, base = family_of(model), model.base_model
    if model.config.model_type != "albert":
        return [family.parts(layer) for layer in family.layers(base)]
    groups, passes = base.encoder.albert_layer_groups, model.config.num_hidden_layers
    return [
        family.parts(layer) for index in range(passes) for layer in groups[index * len(groups) // passes].albert_layers
    ]


def _entry(model: Any, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the first layer receives: (tokens, width), and MPNet's bias (heads, tokens, tokens)."""
    base = model.base_model
    hidden = base.embeddings(input_ids=input_ids[None])
    if model.config.model_type == "albert":
        hidden = base.encoder.embedding_hidden_mapping_in(hidden)
    if hasattr(base, "embeddings_project"):
        hidden = base.embeddings_project(hidden)
    bias = base.encoder.compute_position_bias(hidden)[0] if model.config.model_type == "mpnet" else None
    return hidden[0], bias
