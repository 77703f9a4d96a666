"""The cost model: multiply-accumulates of an encoder as a function of how many tokens each layer keeps.

Counts are per sequence on true lengths, never padded. Layer l sees n tokens and keeps k; the next layer sees k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncoderShape:
    """The sizes that decide the cost."""

    layers: int
    width: int
    ffn_width: int


def paper_macs(shape: EncoderShape, lengths: Tensor, kept: Tensor) -> Tensor:
    """Multiply-accumulates in the paper's accounting: attention on n tokens, FFN on the k kept ones.

    lengths: (batch,) true input lengths; kept: (batch, layers) tokens kept by each layer -> (batch,).
    Works on integers (exact) and on floats (differentiable expected lengths of the soft stage).
    """
    seen = tokens_seen(lengths, kept)
    d, f = shape.width, shape.ffn_width
    return (2 * d * seen * seen + 4 * d * d * seen + 2 * d * f * kept).sum(dim=-1)


def dense_macs(shape: EncoderShape, lengths: Tensor) -> Tensor:
    """The same for the unpruned encoder. lengths: (batch,) -> (batch,)."""
    return paper_macs(shape, lengths, lengths[:, None].expand(-1, shape.layers))


def engine_macs(shape: EncoderShape, lengths: Tensor, kept: Tensor, *, alone: int | None = None) -> Tensor:
    """What packed execution really computes.

    Tokens are dropped before the output projection. Layer `alone`, the last if not given, runs queries, projection and
    FFN for the first token only; in layers after it that token attends to itself, which takes its value and no more.
    For a head that reads all tokens, `alone` is the number of layers: there is no such layer.
    """
    seen = tokens_seen(lengths, kept)
    d, f = shape.width, shape.ffn_width
    first = shape.layers - 1 if alone is None else alone
    queries, keys, values, survivors = (part.clone() for part in (seen, seen, seen, kept))
    queries[:, first : first + 1], survivors[:, first:] = 1, 1
    queries[:, first + 1 :], keys[:, first + 1 :], values[:, first + 1 :] = 0, 0, 1
    projections = d * d * (queries + keys + values + survivors)
    return (2 * d * keys * queries + projections + 2 * d * f * survivors).sum(dim=-1)


def tokens_seen(lengths: Tensor, kept: Tensor) -> Tensor:
    """Tokens at the input of each layer: (batch, layers)."""
    return torch.cat([lengths[:, None].to(kept.dtype), kept[:, :-1]], dim=1)


def relative_flops(shape: EncoderShape, lengths: Tensor, kept: Tensor) -> Tensor:
    """Cost of a data set over its dense cost: sum of pruned / sum of dense. Scalar in (0, 1]."""
    pruned, dense = paper_macs(shape, lengths, kept).sum(), dense_macs(shape, lengths).sum()
    return pruned / dense


def lowest_flops(
    shape: EncoderShape, lengths: Tensor, thresholds: Sequence[float], *, protected: Tensor | int = 1
) -> float:
    """What remains when layers with a positive threshold keep protected tokens only. lengths, protected: (rows,)."""
    first = next((i for i, value in enumerate(thresholds) if value > 0), shape.layers)
    least = torch.as_tensor(protected).expand_as(lengths)
    kept = least[:, None].repeat(1, shape.layers)
    kept[:, :first] = lengths[:, None]
    return float(relative_flops(shape, lengths, kept))


def engine_relative_flops(shape: EncoderShape, lengths: Tensor, kept: Tensor, *, alone: int | None = None) -> float:
    """What packed execution computes over what it computes for the dense model, both with the short last layer where
    the head reads first tokens."""
    whole = lengths[:, None].expand(-1, shape.layers).contiguous()
    dense = engine_macs(shape, lengths, whole, alone=shape.layers if alone == shape.layers else None)
    return float(engine_macs(shape, lengths, kept, alone=alone).sum() / dense.sum())


def flops(macs: Tensor) -> Tensor:
    """Two operations, a multiplication and an addition, per multiply-accumulate."""
    return 2 * macs
