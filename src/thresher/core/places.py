"""Where tokens are, as attention sees it: rotations, windows and biases, always by original positions.

Queries and keys are (..., tokens, head width), their positions (..., tokens): all functions broadcast, so that padded
batches and single sequences are computed by the same lines.
"""

from functools import lru_cache

import torch
from torch import Tensor

from thresher.core.layer import LayerSpec
from thresher.core.scores import at_least_float32


@lru_cache(maxsize=8)
def frequencies(base: float, width: int) -> Tensor:
    """(width / 2,) turns by position, in float32, as the models were trained with."""
    return 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))


def turns(positions: Tensor, *, base: float, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., tokens, width) for a head's width, in float32."""
    angles = positions[..., None].float() * frequencies(base, width).to(positions.device)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotated(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys turned by their positions; computed in float32 or better, in the dtype of the states."""
    exact = at_least_float32(states)
    low, high = exact.chunk(2, dim=-1)
    return (exact * cosines + torch.cat([-high, low], dim=-1) * sines).to(states.dtype)


def placed(spec: LayerSpec, query: Tensor, key: Tensor, at: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as the layer compares them. query, key: (..., heads, tokens, head width); at, of: (..., tokens),
    the original positions of queries and keys."""
    if spec.rotary_base is None:
        return query, key

    def turned(states: Tensor, positions: Tensor) -> Tensor:
        assert spec.rotary_base is not None
        return rotated(states, *turns(positions[..., None, :], base=spec.rotary_base, width=spec.head_width))

    return turned(query, at), turned(key, of)


def in_window(spec: LayerSpec, at: Tensor, of: Tensor) -> Tensor | None:
    """(..., 1, queries, keys) which keys a query sees; None where it sees all of them."""
    if spec.window is None:
        return None
    return (of[..., None, None, :] - at[..., None, :, None]).abs() <= spec.window


def logits_of(
    spec: LayerSpec, query: Tensor, key: Tensor, at: Tensor, of: Tensor, *, distance_bias: Tensor | None = None
) -> Tensor:
    """(..., heads, queries, keys) in float32 or better, of `placed` queries and keys, without the window.

    distance_bias: (2 x reach - 1, heads) by key minus query position.
    """
    logits = at_least_float32(query) @ at_least_float32(key).transpose(-1, -2) / spec.divisor
    if distance_bias is not None:
        table = distance_bias.to(logits)
        distance = of[..., None, :] - at[..., :, None] + len(table) // 2
        logits = logits + table[distance].movedim(-1, -3)
    return logits
