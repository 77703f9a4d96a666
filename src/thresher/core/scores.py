"""How much attention each token receives.

The relative score of a token is the attention it receives from all live tokens, averaged over heads. A live token
receives 1 on average, whatever the length. The paper's score is the relative score divided by the live length.
"""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Scores are compared in float32 or better: bfloat16 steps near 0.01 are coarser than a temperature."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def attention_probabilities(logits: Tensor, alive: Tensor) -> Tensor:
    """Softmax over live keys; a key that is half alive gets half the weight, a dead key exactly none.

    logits: (batch, heads, queries, keys), alive: (batch, keys), boolean or in [0, 1].

    A boolean mask takes the ordinary softmax, so that pruning nothing is the stock model to the bit. Weights multiply
    the exponentials instead of adding log(alive): a finite additive mask lets dead keys leak attention, and its
    gradient is singular at zero.
    """
    logits = at_least_float32(logits)
    if alive.dtype == torch.bool:
        return torch.softmax(logits.masked_fill(~alive[:, None, None, :], float("-inf")), dim=-1)
    weight = alive[:, None, None, :].to(logits.dtype)
    peak = logits.masked_fill(weight == 0, float("-inf")).amax(dim=-1, keepdim=True).detach()
    unnormalised = torch.exp((logits - peak).clamp(max=60.0)) * weight
    return unnormalised / unnormalised.sum(dim=-1, keepdim=True)


def relative_scores(probabilities: Tensor, alive: Tensor) -> Tensor:
    """Attention received from live queries, mean over heads.

    probabilities: (batch, heads, queries, keys) before dropout, alive: (batch, queries) -> (batch, keys).
    """
    weight = alive.to(probabilities.dtype)
    return torch.einsum("bhqk,bq->bk", probabilities, weight) / probabilities.shape[1]


def scores_in(scale: str, relative: Tensor, alive: Tensor) -> Tensor:
    """Express relative scores (batch, keys) in the given scale, "relative" or "paper" (divided by the live length)."""
    if scale == "relative":
        return relative
    return relative / alive.to(relative.dtype).sum(dim=-1, keepdim=True).clamp(min=1.0)
