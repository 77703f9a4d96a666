"""What thresher needs to know about a model family: where its layers are and what each layer is made of.

All supported families are post-norm encoders with the same layer; they differ in names, in dropout and in how the stock
encoder calls a layer. A family file states just that, and nothing is computed there. Submodule names are the most
stable interface of the host library, because saved checkpoints depend on them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from thresher.core.cost import EncoderShape


@dataclass(frozen=True)
class LayerParts:
    """One encoder layer, taken apart. Linear weights are (out, in)."""

    heads: int
    query: nn.Linear  # width -> width
    key: nn.Linear  # width -> width
    value: nn.Linear  # width -> width
    attention_output: nn.Linear  # width -> width
    attention_norm: nn.LayerNorm
    ffn_in: nn.Linear  # width -> ffn_width
    activation: Callable[[Tensor], Tensor]
    ffn_out: nn.Linear  # ffn_width -> width
    output_norm: nn.LayerNorm
    attention_dropout: float
    attention_output_dropout: float
    ffn_dropout: float


def no_position_bias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Families with absolute positions only."""
    return None


@dataclass(frozen=True)
class Family:
    """A group of model types that share layer code.

    `layers` lists the distinct layer modules of a base model, `passes` counts how often a token runs through one
    (ALBERT runs one module many times), `position_bias` finds the additive bias (batch, heads, queries, keys) among the
    arguments the stock encoder gives a layer, and `wrap` returns a layer's output as the stock encoder expects it.
    """

    model_types: tuple[str, ...]
    layers: Callable[[nn.Module], list[nn.Module]]
    parts: Callable[[nn.Module], LayerParts]
    passes: Callable[[nn.Module], int] | None = None
    position_bias: Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] = no_position_bias
    wrap: Callable[[Tensor], Any] = field(default=lambda output: output)

    def layer_passes(self, base: nn.Module) -> int:
        return self.passes(base) if self.passes else len(self.layers(base))

    def shape(self, base: nn.Module) -> EncoderShape:
        parts = self.parts(self.layers(base)[0])
        return EncoderShape(
            layers=self.layer_passes(base), width=parts.query.in_features, ffn_width=parts.ffn_in.out_features
        )
