"""The cost model: multiply-accumulates of an encoder as a function of how many tokens each layer keeps.

Counts are per sequence on true lengths, never padded. Layer l sees n tokens and keeps k; the next layer sees k, or
all tokens where dropped ones rejoin it: it then keeps all, more than the layer before.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from thresher.core.layer import LayerSpec

FULL_BITS = 16  # of what bit operations are compared with


@dataclass(frozen=True)
class EncoderShape:
    """The sizes that decide the cost.

    `gated`: the feed-forward has three matrices and not two. `reach`: keys that a query of each layer sees at most, if
    not all; with a window, some of them may have been dropped, so a pruned layer costs at most what is counted.
    `relative_rows`: of embeddings of distances, with which queries or keys or both are multiplied (`relative_by`).
    `kernel`: of a convolution over the input, once, in so many `groups` of the width.
    """

    layers: int
    width: int
    ffn_width: int
    gated: bool = False
    reach: tuple[int | None, ...] = ()
    relative_rows: int = 0
    kernel: int = 0
    relative_by: tuple[str, ...] = ("queries", "keys")
    groups: int = 1

    def numbers(self) -> list[Any]:
        """All of it as JSON gives it back, lists and not tuples, to compare with what was saved."""
        return [list(value) if isinstance(value, tuple) else value for value in asdict(self).values()]

    @staticmethod
    def of(specs: Sequence[LayerSpec]) -> "EncoderShape":
        """By the descriptions of all layer passes, whose sizes are alike."""
        reach = tuple(None if spec.window is None else 2 * spec.window + 1 for spec in specs)
        return EncoderShape(
            layers=len(specs),
            width=specs[0].width,
            ffn_width=specs[0].ffn_width,
            gated=specs[0].gated,
            reach=reach if any(reach) else (),
            relative_rows=specs[0].relative_rows,
            kernel=max(spec.kernel for spec in specs),
            relative_by=specs[0].relative_by,
            groups=max(spec.groups for spec in specs),
        )

    @property
    def feed_forward(self) -> int:
        """Of one token."""
        return (3 if self.gated else 2) * self.width * self.ffn_width

    def keys_of(self, tokens: Tensor) -> Tensor:
        """Keys that a query compares itself with, by tokens a layer sees: (batch, layers) -> (batch, layers)."""
        if not self.reach:
            return tokens
        most = torch.tensor([2**31 if reach is None else reach for reach in self.reach], device=tokens.device)
        return torch.minimum(tokens, most.to(tokens.dtype))

    def relative_macs(self, queries: Tensor, keys: Tensor, lengths: Tensor) -> Tensor | int:
        """Products of queries and keys (batch, layers) with the distances that there are in texts (batch,)."""
        if not self.relative_rows:
            return 0
        rows = (2 * lengths - 1).clamp(max=self.relative_rows)
        given = {"queries": queries, "keys": keys}
        return self.width * rows[:, None] * sum(given[name] for name in self.relative_by)

    def convolution_macs(self, lengths: Tensor) -> Tensor | int:
        return self.kernel * self.width * (self.width // self.groups) * lengths


def paper_macs(shape: EncoderShape, lengths: Tensor, kept: Tensor) -> Tensor:
    """Multiply-accumulates in the paper's accounting: attention on n tokens, FFN on the k kept ones.

    lengths: (batch,) true input lengths; kept: (batch, layers) tokens kept by each layer -> (batch,).
    Works on integers (exact) and on floats (differentiable expected lengths of the soft stage).
    """
    seen = tokens_seen(lengths, kept)
    d = shape.width
    macs = 2 * d * seen * shape.keys_of(seen) + 4 * d * d * seen + shape.feed_forward * kept
    return (macs + shape.relative_macs(seen, seen, lengths)).sum(dim=-1) + shape.convolution_macs(lengths)


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
    d = shape.width
    first = shape.layers - 1 if alone is None else alone
    queries, keys, values, survivors = (part.clone() for part in (seen, seen, seen, kept))
    queries[:, first : first + 1], survivors[:, first:] = 1, 1
    queries[:, first + 1 :], keys[:, first + 1 :], values[:, first + 1 :] = 0, 0, 1
    projections = d * d * (queries + keys + values + survivors)
    macs = 2 * d * shape.keys_of(keys) * queries + projections + shape.feed_forward * survivors
    return (macs + shape.relative_macs(queries, keys, lengths)).sum(dim=-1) + shape.convolution_macs(lengths)


def tokens_seen(lengths: Tensor, kept: Tensor) -> Tensor:
    """Tokens at the input of each layer: (batch, layers)."""
    return torch.cat([lengths[:, None].to(kept.dtype), torch.maximum(kept[:, :-1], kept[:, 1:])], dim=1)


def relative_flops(shape: EncoderShape, lengths: Tensor, kept: Tensor) -> Tensor:
    """Cost of a data set over its dense cost: sum of pruned / sum of dense. Scalar in (0, 1]."""
    pruned, dense = paper_macs(shape, lengths, kept).sum(), dense_macs(shape, lengths).sum()
    return pruned / dense


def lowest_flops(
    shape: EncoderShape, lengths: Tensor, thresholds: Sequence[float], *, protected: Tensor | int = 1, rejoin: int = 0
) -> float:
    """What remains when layers with a positive threshold keep protected tokens only, and the last `rejoin` layers all.
    lengths, protected: (rows,)."""
    first = next((i for i, value in enumerate(thresholds) if value > 0), shape.layers)
    least = torch.as_tensor(protected).expand_as(lengths)
    kept = least[:, None].repeat(1, shape.layers)
    kept[:, :first] = kept[:, shape.layers - rejoin :] = lengths[:, None]
    return float(relative_flops(shape, lengths, kept))


def engine_relative_flops(shape: EncoderShape, lengths: Tensor, kept: Tensor, *, alone: int | None = None) -> float:
    """What packed execution computes over what it computes for the dense model, both with the short last layer where
    the head reads first tokens."""
    whole = lengths[:, None].expand(-1, shape.layers).contiguous()
    dense = engine_macs(shape, lengths, whole, alone=shape.layers if alone == shape.layers else None)
    return float(engine_macs(shape, lengths, kept, alone=alone).sum() / dense.sum())


def relative_bit_operations(shape: EncoderShape, lengths: Tensor, kept: Tensor, *, bits: int) -> float:
    """Bit operations of a data set over those of the dense model in fp16: multiply-accumulates times the bits of both
    factors. Products with matrices of weights have `bits`; those inside attention, and a convolution, stay in floating
    point, and count as 16."""
    seen = tokens_seen(lengths, kept)
    inside = 2 * shape.width * seen * shape.keys_of(seen) + shape.relative_macs(seen, seen, lengths)
    floating = (inside.sum(dim=-1) + shape.convolution_macs(lengths)).sum()
    rest = paper_macs(shape, lengths, kept).sum() - floating
    return float((floating * FULL_BITS**2 + rest * bits**2) / (dense_macs(shape, lengths).sum() * FULL_BITS**2))


def flops(macs: Tensor) -> Tensor:
    """Two operations, a multiplication and an addition, per multiply-accumulate."""
    return 2 * macs
