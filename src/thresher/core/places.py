"""Where tokens are, as attention sees it: rotations, windows and biases, always by original positions.

Queries and keys are (..., tokens, head width), their positions (..., tokens): all functions broadcast, so that padded
batches and single sequences are computed by the same lines.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from thresher.core.layer import LayerSpec
from thresher.core.scores import at_least_float32


@lru_cache(maxsize=16)
def frequencies(base: float, width: int, device: torch.device) -> Tensor:
    """(width / 2,) turns by position, in float32, as the models were trained with; kept on the device, because a step
    that is recorded into a CUDA graph cannot copy from the host."""
    return (1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))).to(device)


def turns(positions: Tensor, *, base: float, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., tokens, width) for a head's width, in float32."""
    angles = positions[..., None].float() * frequencies(base, width, positions.device)
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


@dataclass(frozen=True)
class Relative:
    """Embeddings of distances, as a layer's queries and keys meet them. One row serves both: that of the query's
    position minus the key's.

    keys, queries: (heads, embeddings, head width), or None where there is no such term; rows: (2 x reach + 1,) the
    embedding of every distance, and beyond them that of the last one.
    """

    keys: Tensor | None
    queries: Tensor | None
    rows: Tensor

    def of_keys(self, key: Tensor) -> Tensor | None:
        """Keys (..., heads, keys, head width) times what queries are for distances: (..., heads, embeddings, keys)."""
        return None if self.queries is None else self.queries.to(key) @ key.transpose(-1, -2)

    def index(self, at: Tensor, of: Tensor) -> Tensor:
        """(..., queries, keys) the embedding of every pair's distance."""
        reach = len(self.rows) // 2
        places = (at[..., :, None] - of[..., None, :]).clamp_(-reach, reach).add_(reach)
        return self.rows.index_select(0, places.flatten()).view(places.shape)  # several times as fast as rows[places]

    def terms(self, query: Tensor, of_keys: Tensor | None, at: Tensor, of: Tensor) -> Tensor | float:
        """What distances add to query x key, before it is divided: (..., heads, queries, keys)."""
        index = self.index(at, of)[..., None, :, :]
        shape = (*query.shape[:-1], of.shape[-1])
        total: Tensor | float = 0.0
        if self.keys is not None:
            total = (query @ self.keys.to(query).transpose(-1, -2)).gather(-1, index.expand(shape))
        if of_keys is not None:
            total = total + of_keys.gather(-2, index.expand(shape))
        return total

    def narrowed(self, reach: int) -> "Relative":
        """As much as distances of at most `reach` ask for."""
        here = len(self.rows) // 2
        if reach >= here:
            return self
        rows = self.rows[here - reach : here + reach + 1]
        low, high = int(rows[0]), int(rows[-1]) + 1  # rows never fall with the distance
        keys, queries = (None if part is None else part[:, low:high] for part in (self.keys, self.queries))
        return Relative(keys, queries, rows - low)


def logits_of(
    spec: LayerSpec,
    query: Tensor,
    key: Tensor,
    at: Tensor,
    of: Tensor,
    *,
    distance_bias: Tensor | None = None,
    relative: Relative | None = None,
) -> Tensor:
    """(..., heads, queries, keys) in float32 or better, of `placed` queries and keys, without the window.

    distance_bias: (2 x reach - 1, heads) by key minus query position.
    """
    query, key = at_least_float32(query), at_least_float32(key)
    logits = query @ key.transpose(-1, -2)
    if relative is not None:
        logits = logits + relative.terms(query, relative.of_keys(key), at, of)
    logits = logits / spec.divisor
    if distance_bias is not None:
        table = distance_bias.to(logits)
        distance = of[..., None, :] - at[..., :, None] + len(table) // 2
        logits = logits + table[distance].movedim(-1, -3)
    return logits
