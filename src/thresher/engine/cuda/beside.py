"""The convolution beside a layer (DeBERTa-v2's first), as one matrix product over rows and their neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thresher.engine.cuda.live import Live
from thresher.engine.cuda.products import Count, product
from thresher.engine.kernels.norm import add_norm
from thresher.engine.weights import Affine, Convolution, Norm, activation_name


@dataclass(frozen=True)
class Beside:
    """weights: (width, kernel x width), the first neighbour's first. `activation` is one that the kernels know, or
    "none" with the function in `other`; norm: of the sum with the layer's output."""

    affine: Affine
    kernel: int
    activation: str
    other: Callable[[Tensor], Tensor] | None
    norm: Norm

    def of(self, hidden: Tensor, live: Live) -> Tensor:
        """What it makes of the layer's input (capacity, width), inside each run, before anything is dropped. Nothing
        was dropped before the layer, so rows are neighbours exactly where positions are."""
        at, total, reach = torch.arange(len(hidden), device=hidden.device), live.cu_seqlens[-1], self.kernel // 2
        parts = []
        for step in range(-reach, reach + 1):
            place = at + step
            there = (place >= 0) & (place < total)
            place = place.clamp(0, len(hidden) - 1)
            there = there & (live.positions[place] == live.positions + step)
            parts.append(torch.where(there[:, None], hidden[place], 0.0))
        found = product(torch.cat(parts, dim=1), self.affine, live.tokens, activation=self.activation)
        return found if self.other is None else self.other(found)

    def joined(self, hidden: Tensor, beside: Tensor, count: Count, *, rows: Tensor | None) -> Tensor:
        """The layer's output with what `of` gave, in these of its rows."""
        norm = self.norm
        return add_norm(hidden, beside, norm.weight, norm.bias, epsilon=norm.epsilon, rows=rows, count=count.on_device)


def beside_of(given: Convolution, *, affine: Callable[[Affine], Affine], norm: Callable[[Norm | None], Norm]) -> Beside:
    """With the model's way to convert products and norms."""
    outputs, inputs, kernel = given.weight.shape
    weight = given.weight.new_zeros(outputs, kernel, given.groups, inputs)
    each = outputs // given.groups
    for group in range(given.groups):
        mine = slice(group * each, (group + 1) * each)
        weight[mine, :, group] = given.weight[mine].transpose(1, 2)
    activation = activation_name(given.activation)
    return Beside(
        affine=affine(Affine(weight.flatten(1), given.bias)),
        kernel=kernel,
        activation=activation,
        other=given.activation if activation == "none" else None,
        norm=norm(given.norm),
    )
