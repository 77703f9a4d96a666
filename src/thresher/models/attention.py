"""Attention of an attached layer: over live tokens, and with it the scores that its gates decide by."""

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.layer import LayerSpec
from thresher.core.places import Relative, in_window, logits_of
from thresher.core.scores import keys_seen
from thresher.models.gating import Gates


def attention(
    spec: LayerSpec,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    gates: Gates,
    dropout: float,
    bias: Tensor | None = None,
    relative: Relative | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What every token is given by the live ones, and what the layer's output is multiplied by, if anything.

    query, key, value: (batch, heads, tokens, width of a head), queries and keys as `placed` gives them; bias: (batch,
    heads, tokens, tokens), by original positions -> (batch, heads, tokens, width of a head), (batch, tokens).
    """
    apart = gates.mode == "hard" and relative is None and value.is_cuda and value.dtype == torch.bfloat16
    if apart:
        return scored_apart(spec, query, key, value, gates=gates, bias=bias, dropout=dropout), None
    with torch.autocast(value.device.type, enabled=False):
        probabilities = _probabilities(spec, query, key, gates=gates, bias=bias, relative=relative)
        multiplier = gates.decide(probabilities, value)
    return F.dropout(probabilities, dropout).to(value.dtype) @ value, multiplier


def scored_apart(
    spec: LayerSpec, query: Tensor, key: Tensor, value: Tensor, *, gates: Gates, bias: Tensor | None, dropout: float
) -> Tensor:
    """The same for hard gates, whose scores no gradient passes through: the library's own attention, and scores beside
    it. So probabilities, which grow with the square of a text's length, are not kept for the backward pass."""
    places = gates.places()
    mask = keys_seen(gates.seen(), in_window(spec, places, places))
    if bias is not None:  # the library adds it in the states' own dtype
        mask = gates.bias(bias).to(value.dtype).masked_fill(~mask, float("-inf"))
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=1 / spec.divisor
    )
    with torch.no_grad(), torch.autocast(value.device.type, enabled=False):
        gates.decide(_probabilities(spec, query, key, gates=gates, bias=bias), value)
    return context


def _probabilities(
    spec: LayerSpec,
    query: Tensor,
    key: Tensor,
    *,
    gates: Gates,
    bias: Tensor | None,
    relative: Relative | None = None,
) -> Tensor:
    """(batch, heads, tokens, tokens), in float32 or better."""
    places = gates.places()
    logits = logits_of(spec, query, key, places, places, relative=relative)
    return gates.probabilities(logits if bias is None else logits + gates.bias(bias), in_window(spec, places, places))
