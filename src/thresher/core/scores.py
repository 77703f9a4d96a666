"""How much attention each token receives.

The relative score of a token is the attention it receives from all live tokens, averaged over heads. A live token
receives 1 on average, whatever the length. The paper's score is the relative score divided by the live length.

Attention says how often a token is read, not how much is read: separators and other resting places get much of it and
pass on next to nothing. The value score weighs it by the length of the value vector that it moves.
"""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Scores are compared in float32 or better: bfloat16 steps near 0.01 are coarser than a temperature."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def keys_seen(alive: Tensor, inside: Tensor | None = None) -> Tensor:
    """What queries see of keys: (batch, 1, 1 or queries, keys), as alive as the key, where a window has it inside.

    alive: (batch, keys), boolean or in [0, 1]; inside: (batch or 1, 1, queries, keys) boolean, or None: all are. A dead
    query may have no live key in its window; it sees itself, so that what nobody reads stays a number.
    """
    if inside is None:
        return alive[:, None, None, :]
    seen = alive[:, None, None, :] * inside
    alone = torch.eye(alive.shape[1], dtype=torch.bool, device=alive.device) & (alive == 0)[:, None, :, None]
    return torch.where(alone, torch.ones_like(seen), seen)


def attention_probabilities(logits: Tensor, alive: Tensor, inside: Tensor | None = None) -> Tensor:
    """Softmax over live keys; a key that is half alive gets half the weight, a dead key exactly none.

    logits: (batch, heads, queries, keys); alive, inside: see `keys_seen`.

    A boolean mask takes the ordinary softmax, so that pruning nothing is the stock model to the bit. Weights multiply
    the exponentials instead of adding log(alive): a finite additive mask lets dead keys leak attention, and its
    gradient is singular at zero.
    """
    logits, seen = at_least_float32(logits), keys_seen(alive, inside)
    if seen.dtype == torch.bool:
        return torch.softmax(logits.masked_fill(~seen, float("-inf")), dim=-1)
    weight = seen.to(logits.dtype)
    peak = logits.masked_fill(weight == 0, float("-inf")).amax(dim=-1, keepdim=True).detach()
    unnormalised = torch.exp((logits - peak).clamp(max=60.0)) * weight
    return unnormalised / unnormalised.sum(dim=-1, keepdim=True)


def relative_scores(probabilities: Tensor, alive: Tensor) -> Tensor:
    """Attention received from live queries, mean over heads.

    probabilities: (batch, heads, queries, keys) before dropout, alive: (batch, queries) -> (batch, keys).
    """
    weight = alive.to(probabilities.dtype)
    return torch.einsum("bhqk,bq->bk", probabilities, weight) / probabilities.shape[1]


def value_scores(probabilities: Tensor, alive: Tensor, lengths: Tensor) -> Tensor:
    """Attention received from live queries times the length of the key's value vector, summed over heads; 1 on average.

    probabilities: (batch, heads, queries, keys) before dropout, alive: (batch, queries), boolean or in [0, 1], lengths
    of value vectors: (batch, heads, keys) -> (batch, keys). A key that fades is judged by what it would get in full.
    """
    weight = alive.to(probabilities.dtype)
    received = torch.einsum("bhqk,bq->bhk", probabilities, weight)
    moved = (received * lengths.to(received.dtype)).sum(dim=1)
    if alive.is_floating_point():
        moved = moved / weight.clamp(min=1e-6)
    mean = (moved * weight).sum(dim=-1, keepdim=True) / weight.sum(dim=-1, keepdim=True).clamp(min=1e-6)
    return moved / mean.clamp(min=torch.finfo(moved.dtype).tiny)


def scores_in(scale: str, relative: Tensor, alive: Tensor) -> Tensor:
    """Express relative scores (batch, keys) in the given scale, "relative" or "paper" (divided by the live length)."""
    if scale == "relative":
        return relative
    return relative / alive.to(relative.dtype).sum(dim=-1, keepdim=True).clamp(min=1.0)
