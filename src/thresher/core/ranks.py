"""Which tokens come first: by score, or by chance; and the rule that keeps the first so many of them."""

import torch
from torch import Tensor

_PRIME = 2**31 - 1  # products of two numbers below it fit in 64 bits, so the same text has the same noise everywhere
_STEP, _SEED_STEP, _POSITION_STEP = 48_271, 1_000_003, 69_621


def places(scores: Tensor, *, alive: Tensor, protected: Tensor) -> Tensor:
    """The place of every token, from 0: protected ones first, then by falling score, among equals the earlier one.

    scores: (batch, tokens), alive and protected: boolean (batch, tokens) -> (batch, tokens). Dead tokens come last.
    """
    key = scores.masked_fill(protected, float("inf")).masked_fill(~alive, float("-inf"))
    order = key.argsort(dim=-1, descending=True, stable=True)
    numbers = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.zeros_like(order).scatter(-1, order, numbers)


def top_keep(scores: Tensor, counts: Tensor, *, alive: Tensor, protected: Tensor) -> Tensor:
    """Keep the first `counts` live tokens, at least one, and every protected one.

    scores: (batch, tokens), counts: (batch,), alive and protected: boolean (batch, tokens) -> boolean (batch, tokens).
    """
    first = places(scores, alive=alive, protected=protected) < counts.clamp(min=1).unsqueeze(-1)
    return alive & (first | protected)


def text_noise(input_ids: Tensor, *, alive: Tensor, seed: int) -> Tensor:
    """A random number for every token that depends on the whole text, the position and the seed, and on nothing else.

    input_ids: (batch, tokens), alive: the tokens that are not padding -> (batch, tokens) in [0, 1), float64.
    """
    positions = torch.arange(1, input_ids.shape[-1] + 1, device=input_ids.device)
    weights = [_STEP]
    while len(weights) < len(positions):
        weights.append(weights[-1] * _STEP % _PRIME)
    terms = (input_ids.long() + 1) * torch.tensor(weights, device=input_ids.device) % _PRIME
    text = terms.masked_fill(~alive, 0).sum(dim=-1, keepdim=True) % _PRIME
    number = (text + positions * _POSITION_STEP + seed % _PRIME * _SEED_STEP % _PRIME) % _PRIME
    for _ in range(3):
        number = (number * number % _PRIME * _STEP + _SEED_STEP) % _PRIME
    return number.double() / _PRIME
