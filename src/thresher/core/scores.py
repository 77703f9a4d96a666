"""How much attention each token receives.

The relative score of a token is the attention it receives from all live tokens, averaged over heads. A live token
receives 1 on average, whatever the length. The paper's score is the relative score divided by the live length.

Attention says how often a token is read, not how much is read: separators and other resting places get much of it and
pass on next to nothing. The value score weighs it by the length of the value vector that it moves.

Not every query has to be asked. Some of them, chosen by original position, stand for all: so a text is judged alike
whatever it is batched or packed with, and 1 stays the average.
"""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Scores are compared in float32 or better: bfloat16 steps near 0.01 are coarser than a temperature."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def counted_queries(places: Tensor, score_queries: int) -> Tensor | None:
    """Which queries' attention counts, by original position: every so many-th one's and so the first one's, or at 0 the
    first one's alone; None where all count. places: integers -> boolean, of one shape."""
    if score_queries == 1:
        return None
    return places == 0 if score_queries == 0 else places % score_queries == 0


def queries_in_words(score_queries: int) -> str:
    """Whose attention counts, for people."""
    return {0: "the first token", 1: "all tokens"}.get(score_queries, f"one token in {score_queries}")


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
    gradient is singular at zero. The gradient of a dead key's weight is that of a key at the live ones' peak, if its
    own logit is higher.
    """
    logits, seen = at_least_float32(logits), keys_seen(alive, inside)
    if seen.dtype == torch.bool:
        return torch.softmax(logits.masked_fill(~seen, float("-inf")), dim=-1)
    weight = seen.to(logits.dtype)
    peak = logits.masked_fill(weight == 0, float("-inf")).amax(dim=-1, keepdim=True).detach()
    unnormalised = torch.exp((logits - peak).clamp(max=0.0)) * weight
    return unnormalised / unnormalised.sum(dim=-1, keepdim=True)


def query_weights(alive: Tensor, counted: Tensor | None, dtype: torch.dtype) -> Tensor:
    """How much each query's attention counts: as much as it is alive; where not all count, those that do have the
    others' weight, too, in equal parts. alive: (batch, queries), counted: the same or (1, queries) -> (batch, queries).
    """
    weight = alive.to(dtype)
    if counted is None:
        return weight
    chosen = weight * counted
    return chosen * (weight.sum(dim=-1, keepdim=True) / chosen.sum(dim=-1, keepdim=True).clamp(min=1e-6))


def relative_scores(probabilities: Tensor, alive: Tensor, counted: Tensor | None = None) -> Tensor:
    """Attention received from live queries, or those of them that count, mean over heads.

    probabilities: (batch, heads, queries, keys) before dropout, alive: (batch, queries) -> (batch, keys).
    """
    weight = query_weights(alive, counted, probabilities.dtype)
    return torch.einsum("bhqk,bq->bk", probabilities, weight) / probabilities.shape[1]


def value_scores(probabilities: Tensor, alive: Tensor, lengths: Tensor, counted: Tensor | None = None) -> Tensor:
    """Attention received from live queries times the length of the key's value vector, summed over heads; 1 on average.

    probabilities: (batch, heads, queries, keys) before dropout, alive: (batch, queries), boolean or in [0, 1], lengths
    of value vectors: (batch, heads, keys) -> (batch, keys). A key that fades is judged by what it would get in full.
    """
    weight = alive.to(probabilities.dtype)
    asked = query_weights(alive, counted, probabilities.dtype)
    received = torch.einsum("bhqk,bq->bhk", probabilities, asked)
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
