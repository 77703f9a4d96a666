"""A model's parts in plain torch, from its weights: what the reference computes, and rivals without pruning."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.layer import Steps, inner_states
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, Convolution, Layer, Norm, Weights

Product = Callable[[Tensor, Affine], Tensor]  # (rows, in) -> (rows, out)


def linear(values: Tensor, affine: Affine) -> Tensor:
    """(rows, in) -> (rows, out)."""
    return F.linear(values, affine.weight, affine.bias)


def normed(values: Tensor, norm: Norm | None) -> Tensor:
    """(rows, width); the values themselves where the norm is identity."""
    return values if norm is None else F.layer_norm(values, values.shape[-1:], norm.weight, norm.bias, norm.epsilon)


def steps_of(layer: Layer, product: Product = linear) -> Steps[Tensor]:
    """What a layer does after attention."""

    def feed_forward(values: Tensor) -> Tensor:
        widened = product(values, layer.ffn_in).chunk(layer.spec.halves, dim=-1)
        return product(inner_states(layer.spec, *widened), layer.ffn_out)

    return Steps(
        output=lambda context: product(context, layer.attention_output),
        norms=(lambda values: normed(values, layer.attention_norm), lambda values: normed(values, layer.output_norm)),
        feed_forward=feed_forward,
        add=torch.add,
    )


def embedded(weights: Weights, ids: Tensor, rows: Tensor, types: Tensor | None) -> Tensor:
    """The first layer's input (total, width). ids, rows of the position table, types: (total,); no types are zeros."""
    total = F.embedding(ids, weights.word)
    if weights.position is not None:
        total = total + F.embedding(rows, weights.position)
    if weights.token_type is not None:
        total = total + (weights.token_type[0] if types is None else F.embedding(types, weights.token_type))
    hidden = normed(total, weights.embedding_norm)
    return hidden if weights.projection is None else linear(hidden, weights.projection)


def convolved(convolution: Convolution | None, hidden: Tensor, runs: Ragged) -> Tensor | None:
    """What a layer's convolution makes of its input, inside each run; None where it has none. hidden: as many rows as
    the runs have, or more, which mean nothing."""
    if convolution is None:
        return None
    padding = convolution.weight.shape[-1] // 2
    found = torch.zeros_like(hidden)
    for into, run in zip(
        torch.split(found[: len(runs.positions)], runs.lengths.tolist()),
        torch.split(hidden[: len(runs.positions)].to(convolution.weight.dtype), runs.lengths.tolist()),
        strict=True,
    ):
        made = F.conv1d(run.t()[None], convolution.weight, convolution.bias, padding=padding, groups=convolution.groups)
        into.copy_(convolution.activation(made[0].t()))
    return found


def joined(convolution: Convolution | None, hidden: Tensor, beside: Tensor) -> Tensor:
    """The layer's output, with what its convolution gave. (rows, width) each."""
    assert convolution is not None  # it gave something
    return normed((hidden + beside).to(convolution.weight.dtype), convolution.norm).to(hidden.dtype)
