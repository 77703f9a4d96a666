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


@dataclass(frozen=True)
class EmbeddingParts:
    """How token ids become the first layer's input: a sum of embeddings, a norm, and sometimes a projection.

    `position_offset` is the row of the first token's position embedding. Families that number positions by counting the
    ids that are not padding give that id as `uncounted_id`; it gets the row of its own number.
    """

    word: nn.Embedding
    position: nn.Embedding
    token_type: nn.Embedding | None
    norm: nn.LayerNorm
    position_offset: int
    uncounted_id: int | None
    projection: nn.Linear | None


@dataclass(frozen=True)
class HeadParts:
    """How the first token's last state becomes logits: a layer, an activation, and the output layer.

    Of heads that read every token's state there is the output layer alone, under the same name in every family.
    """

    dense: nn.Linear | None  # width -> width
    activation: Callable[[Tensor], Tensor] | None
    output: nn.Linear  # width -> outputs


def token_head(model: Any, means: str) -> HeadParts:
    """The head of a model for question answering ("span") or token classification ("tags"), of any family."""
    return HeadParts(dense=None, activation=None, output=model.qa_outputs if means == "span" else model.classifier)


def no_position_bias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Families with absolute positions only."""
    return None


@dataclass(frozen=True)
class Family:
    """A group of model types that share layer code.

    `layers` lists the distinct layer modules of a base model; `sequence` names the one of each pass, where that
    differs (ALBERT runs one module many times). `position_bias` finds the additive bias (batch, heads, queries, keys)
    among the arguments the stock encoder gives a layer, and `wrap` returns a layer's output as that encoder expects it.
    `distance_bias(base, distances)` computes the same bias as (..., heads) from key position minus query position.
    """

    model_types: tuple[str, ...]
    layers: Callable[[nn.Module], list[nn.Module]]
    parts: Callable[[nn.Module], LayerParts]
    embeddings: Callable[[nn.Module], EmbeddingParts]
    head: Callable[[nn.Module], HeadParts]
    sequence: Callable[[nn.Module], list[nn.Module]] | None = None
    distance_bias: Callable[[nn.Module, Tensor], Tensor] | None = None
    position_bias: Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] = no_position_bias
    wrap: Callable[[Tensor], Any] = field(default=lambda output: output)

    def layer_sequence(self, base: nn.Module) -> list[nn.Module]:
        """The layer module of every pass, in order."""
        return self.sequence(base) if self.sequence else self.layers(base)

    def layer_passes(self, base: nn.Module) -> int:
        return len(self.layer_sequence(base))

    def shape(self, base: nn.Module) -> EncoderShape:
        parts = self.parts(self.layers(base)[0])
        return EncoderShape(
            layers=self.layer_passes(base), width=parts.query.in_features, ffn_width=parts.ffn_in.out_features
        )
