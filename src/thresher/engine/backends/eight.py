"""What a GPU computes in fp8, on the CPU: the same rounded factors, multiplied and added up in float32.

Readable and slow, so that no engine takes it: it is the twin that the GPU's fp8 is tested against, and what measures
its quality where there is no such GPU.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.arithmetic import FP8
from thresher.engine.backends.cpu import Cpu, check_scales
from thresher.engine.backends.feedforward import FeedForward
from thresher.engine.eight import eight_weight, rounded
from thresher.engine.weights import Affine, Layer, LayerScales, Weights


class RoundedToEight:
    """scale: (in,) or one number, what a unit of the input is worth."""

    def __init__(self, affine: Affine, scale: Tensor) -> None:
        weight, worth = eight_weight(affine.weight, scale)
        self.weight, self.bias, self.units = weight.float() * worth[:, None], affine.bias.float(), 1 / scale

    def __call__(self, values: Tensor) -> Tensor:
        return F.linear(rounded(values, self.units), self.weight, self.bias)


class EightBits(Cpu):
    """The CPU backend in fp32 with the layers' products in fp8. `scales` are a quantized run's."""

    def __init__(self, weights: Weights, plan: PruningPlan, *, scales: Sequence[LayerScales]) -> None:
        check_scales(scales, weights)
        self.of_layers = scales
        super().__init__(weights, plan, dtype="fp32")
        self.dtype = FP8

    def _linear(self, affine: Affine, index: int, site: str) -> RoundedToEight:
        return RoundedToEight(affine, getattr(self.of_layers[index], site))

    def _feed_forward(self, layer: Layer, index: int) -> FeedForward:
        inner, outer = self._linear(layer.ffn_in, index, "ffn_in"), self._linear(layer.ffn_out, index, "ffn_out")
        return FeedForward(layer.spec, inner, outer)
