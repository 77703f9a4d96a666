"""From the engine's int8 scales to the model that trains with them: the same products, rounded alike."""

from collections.abc import Sequence
from typing import Any

from thresher.engine.backends.feedforward import gelu_zero, is_plain_gelu
from thresher.engine.scales import SITES
from thresher.engine.weights import LayerScales
from thresher.models.attach import encoder_shape, gates_of
from thresher.models.registry import family_of
from thresher.models.rounding import Rounding


def round_(model: Any, scales: Sequence[LayerScales]) -> None:
    """Let the pruned layers of a model with gates lose what static int8 loses with these scales, in place."""
    specs, shape = family_of(model).specs(model.base_model), encoder_shape(model)
    zeros = [gelu_zero(float(layer.ffn_out)) for layer in scales]
    fused = [is_plain_gelu(spec) for spec in specs]
    rounding = Rounding(
        [{site: getattr(layer, site) for site in SITES} for layer in scales],
        low=[-zero if gelu else -127 for zero, gelu in zip(zeros, fused, strict=False)],
        high=[255 - zero if gelu else 127 for zero, gelu in zip(zeros, fused, strict=False)],
    )
    rounding.check(layers=shape.layers, width=shape.width)
    gates = gates_of(model)
    gates.rounding = rounding.to(gates.thresholds.device)


def unround_(model: Any) -> None:
    """In floating point again, in place; the weights stay."""
    gates_of(model).rounding = None
