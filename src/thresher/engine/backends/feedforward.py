"""The two products between which a layer widens its states, with the activation inside."""

import math
from dataclasses import dataclass

from torch import Tensor

from thresher.core.layer import LayerSpec, inner_states
from thresher.engine.backends.linear import ZERO, Int8Matrix, Linear, StaticInt8, shifted
from thresher.engine.weights import Layer, LayerScales, activation_name


@dataclass(frozen=True)
class FeedForward:
    """In any arithmetic: (rows, width) -> (rows, width)."""

    spec: LayerSpec
    widen: Linear
    narrow: Linear

    def __call__(self, values: Tensor) -> Tensor:
        return self.narrow(inner_states(self.spec, *self.widen(values).chunk(self.spec.halves, dim=-1)))


class StaticFeedForward:
    """In static int8. Where GELU made the widened states, a layer's biggest, they never exist in floating point."""

    def __init__(self, layer: Layer, scales: LayerScales) -> None:
        self.widen = StaticInt8(layer.ffn_in, scales.ffn_in)
        self.spec = layer.spec
        self.fused = is_plain_gelu(layer.spec)
        self.scale, self.zero = float(scales.ffn_out), gelu_zero(float(scales.ffn_out)) if self.fused else ZERO
        self.narrow, self.bias = Int8Matrix(layer.ffn_out), layer.ffn_out.bias.float()

    def __call__(self, values: Tensor) -> Tensor:
        widen = self.widen
        if self.fused:
            inner = widen.matrix.gelu_product(
                widen.quantized(values), 1.0, widen.bias, out_scale=self.scale, out_zero=self.zero
            )
        else:
            states = inner_states(self.spec, *widen(values).chunk(self.spec.halves, dim=-1))
            inner = shifted((states / self.scale).clamp_(-127, 127))
        return self.narrow.product(inner, self.scale, self.bias, zero=self.zero)


def is_plain_gelu(spec: LayerSpec) -> bool:
    """Whether GELU alone makes the widened states: then they are never below -0.17."""
    return not spec.gated and activation_name(spec.activation) == "gelu"


def gelu_zero(scale: float) -> int:
    """The byte that stands for 0 where GELU made the values: it gives nothing below -0.17, so most bytes go above."""
    return min(ZERO, math.ceil(0.17 / scale))
