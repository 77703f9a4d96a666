"""Products in static int8, as pairs of QuantizeLinear and DequantizeLinear that runtimes turn into integer products.

The scales are those of `thresher quantize`, and weights are rounded as the engine rounds them. Every scale is fixed, so
what a text keeps does not depend on its neighbours.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.backends.feedforward import gelu_zero, is_plain_gelu
from thresher.engine.backends.linear import ZERO
from thresher.engine.backends.reference import Reference
from thresher.engine.graphs.graph import Graph
from thresher.engine.scales import SITES
from thresher.engine.weights import Affine, Layer, LayerScales, Weights


def int8_affine(graph: Graph, values: str, affine: Affine, scales: Tensor, *, name: str, zero: int = ZERO) -> str:
    """(rows, in) -> (rows, out). scales: (in,), folded into the weights, or () where all inputs have one.

    Biases are added in float32, and bytes end at -127, as in the engine: whoever rounds biases to whole numbers, or
    goes on to -128, keeps other tokens of every second text.
    """
    weight, unit = affine.weight.float(), 1.0
    if scales.dim():
        weight = weight * scales
        values = graph.node("Mul", values, graph.vector(1 / scales, name=f"{name}.per_scale"))
    else:
        unit = float(scales)
    if zero == ZERO:  # not Clip, which OpenVINO joins with the product before it, and gets wrong
        values = graph.node("Max", values, graph.number(-127.0 * unit))
    codes, worth = rounded_weight(weight)
    taken = (graph.number(unit), graph.byte(zero))
    values = graph.node("DequantizeLinear", graph.node("QuantizeLinear", values, *taken), *taken)
    matrix = graph.dequantized(codes.to(torch.int8), worth, name=f"{name}.weight")
    product = graph.node("Gemm", values, matrix, transB=1)
    return str(graph.node("Add", product, graph.vector(affine.bias, name=f"{name}.bias")))


def rounded_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers (out, in), and what 1 of each row is worth (out,)."""
    worth = weight.abs().amax(dim=1).clamp(min=1e-12).div(127)
    return torch.round(weight / worth[:, None]).clamp(-127, 127), worth


def zero_of(layer: Layer, scales: LayerScales) -> int:
    """The byte for 0 in the input of ffn_out; see `gelu_zero`."""
    return gelu_zero(float(scales.ffn_out)) if is_plain_gelu(layer.spec) else ZERO


class Simulated(Reference):
    """The readable twin of a graph in int8: products of layers lose what the graph's lose, in plain float32. Without
    scales they lose nothing.

    ALBERT's passes share one layer, and here also the scales of the first of them.
    """

    def __init__(self, weights: Weights, plan: PruningPlan, scales: Sequence[LayerScales] = ()) -> None:
        super().__init__(weights, plan)
        self._sites: dict[int, tuple[Tensor, int]] = {}
        for layer, own in zip(self.weights.layers if scales else [], scales, strict=True):
            for site in SITES:
                zero = zero_of(layer, own) if site == "ffn_out" else ZERO
                self._sites.setdefault(id(getattr(layer, site)), (getattr(own, site), zero))

    def linear(self, values: Tensor, affine: Affine) -> Tensor:
        found = self._sites.get(id(affine))
        if found is None:
            return super().linear(values, affine)
        scales, zero = found
        steps = values * (1 / scales) if scales.dim() else values / scales
        low, high = (-127, 127) if zero == ZERO else (-zero, 255 - zero)
        weight, worth = rounded_weight(affine.weight * scales)
        sums = steps.round().clamp(low, high).double() @ weight.double().T  # whole numbers add up exactly in float64
        return (sums * worth).float() + affine.bias
