"""The stock model's own layers, called one by one with masks that hide what was dropped: no line of ours computes."""

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def stock_masked(model: Any, input_ids: Tensor, kept: list[list[int]]) -> Tensor:
    """Last states (tokens, width) of one text (tokens,), of a model without gates, where layer i leaves `kept[i]`.

    A token that is dropped is still computed by all later layers, and seen by none of them.
    """
    base, tokens = model.base_model, len(input_ids)
    kind, alive = model.config.model_type, torch.ones(tokens, dtype=torch.bool)
    hidden = base.embeddings(input_ids=input_ids[None])
    if kind == "deberta-v2":
        return _deberta(base.encoder, hidden, kept)
    for index, layer in enumerate(base.encoder.layer if kind == "roberta-prelayernorm" else base.layers):
        if kind == "modernbert":
            hidden = layer(hidden, **_modernbert(base, layer, hidden, alive))
        else:
            mask = torch.zeros(1, 1, 1, tokens, dtype=hidden.dtype).masked_fill(~alive, float("-inf"))
            turned = hasattr(base, "rotary_emb")
            places = {"position_embeddings": base.rotary_emb(hidden, torch.arange(tokens)[None])} if turned else {}
            hidden = layer(hidden, attention_mask=mask, **places)
        alive = torch.zeros(tokens, dtype=torch.bool)
        alive[kept[index]] = True
    final_norm = {"modernbert": "final_norm", "roberta-prelayernorm": "LayerNorm"}.get(kind)
    return hidden[0] if final_norm is None else getattr(base, final_norm)(hidden)[0]


def _modernbert(base: Any, layer: Any, hidden: Tensor, alive: Tensor) -> dict[str, Any]:
    places = torch.arange(len(alive))
    seen = alive[None, :].expand(len(alive), -1)
    if layer.attention_type == "sliding_attention":
        seen = seen & ((places[:, None] - places[None, :]).abs() <= base.config.sliding_window)
    seen = seen | torch.eye(len(alive), dtype=torch.bool)  # a dropped query must see something
    return {
        "attention_mask": seen[None, None],
        "position_embeddings": base.rotary_emb(hidden, places[None], layer.attention_type),
    }


def _deberta(encoder: Any, hidden: Tensor, kept: list[list[int]]) -> Tensor:
    tokens = hidden.shape[1]
    alive, entry = torch.ones(1, tokens), hidden
    places, distances = encoder.get_rel_pos(hidden), encoder.get_rel_embedding()
    for index, layer in enumerate(encoder.layer):
        seen = alive[:, None, None, :].expand(-1, -1, tokens, -1)
        hidden = layer(hidden, seen, relative_pos=places, rel_embeddings=distances)[0]
        if index == 0 and encoder.conv is not None:
            hidden = encoder.conv(entry, hidden, torch.ones(1, tokens))
        alive = torch.zeros(1, tokens)
        alive[0, kept[index]] = 1
    return hidden[0]
