"""What thresher needs to know about a model family: where its layers are and what each layer is made of.

What a layer computes follows from its `LayerSpec`; families differ in names, in dropout and in how the stock encoder
calls a layer. A family file states just that, and nothing is computed there. Submodule names are the most
stable interface of the host library, because saved checkpoints depend on them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from thresher.core.cost import EncoderShape
from thresher.core.layer import POSITION_NAMES, POST_NORM, LayerSpec
from thresher.core.places import Relative

BERT = frozenset({POST_NORM, POSITION_NAMES["table"]})


@dataclass(frozen=True)
class LayerParts:
    """One encoder layer, taken apart: what it is, and its modules. Linear weights are (out, in).

    `qkv`: queries, keys and values, each width -> width, or all three in one. `ffn_in`: width -> ffn_width; where the
    feed-forward is gated, what is activated and the gate, or both in one. A norm may be nn.Identity.
    """

    spec: LayerSpec
    qkv: tuple[nn.Linear, ...]
    attention_output: nn.Linear  # width -> width
    attention_norm: nn.Module
    ffn_in: tuple[nn.Linear, ...]
    ffn_out: nn.Linear  # ffn_width -> width
    output_norm: nn.Module
    attention_dropout: float
    attention_output_dropout: float
    ffn_dropout: float
    inner_dropout: float = 0.0
    distance_dropout: float = 0.0  # of the embeddings of distances


@dataclass(frozen=True)
class EmbeddingParts:
    """How token ids become the first layer's input: a sum of embeddings, a norm, and sometimes a projection.

    `position_offset` is the row of the first token's position embedding. Families that number positions by counting the
    ids that are not padding give that id as `uncounted_id`; it gets the row of its own number. Families without a
    table of positions say how long a text may be, in `longest`, and, where models were made for less, in `usual`.
    """

    word: nn.Embedding
    token_type: nn.Embedding | None
    norm: nn.LayerNorm
    position: nn.Embedding | None = None
    position_offset: int = 0
    uncounted_id: int | None = None
    projection: nn.Linear | None = None
    longest: int | None = None
    usual: int | None = None

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        if self.position is None:
            assert self.longest is not None  # a family has one or the other
            return self.longest
        return self.position.num_embeddings - self.position_offset


@dataclass(frozen=True)
class ConvolutionParts:
    """A convolution over the first layer's input, which is added to its output before another norm. `module` is what
    the stock encoder calls for it."""

    module: nn.Module
    convolution: nn.Conv1d
    activation: Callable[[Tensor], Tensor]
    norm: nn.Module
    dropout: float


@dataclass(frozen=True)
class HeadParts:
    """How what the head reads becomes logits: a layer, an activation, sometimes a norm, and the output layer.

    Of heads that read every token's state there is the output layer alone, under the same name in every family.
    """

    dense: nn.Linear | None  # width -> width
    activation: Callable[[Tensor], Tensor] | None
    output: nn.Linear  # width -> outputs
    norm: nn.LayerNorm | None = None


def token_head(model: Any, means: str) -> HeadParts:
    """The head of a model for question answering ("span") or token classification ("tags"), of any family."""
    return HeadParts(dense=None, activation=None, output=model.qa_outputs if means == "span" else model.classifier)


def no_position_bias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Families with absolute positions only."""
    return None


PLAIN = "modernbert, nomic_bert and gte as they are published have plain ones"  # what to take instead


def plain_rotary(parameters: dict[str, Any]) -> str | None:
    """Why these settings of rotary positions cannot be computed: only plain ones can, without scaling of any kind."""
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        return f"rotary positions of type {kind!r} are not supported, only 'default'; {PLAIN}"
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return f"rotary positions of a part of each head are not supported; {PLAIN}"
    return None


@dataclass(frozen=True)
class Family:
    """A group of model types that share layer code.

    `features` are those that layers of the family may have, for whoever asks before there is a model.
    `layers` lists the distinct layer modules of a base model; `sequence` names the one of each pass, where that
    differs (ALBERT runs one module many times). `position_bias` finds the additive bias (batch, heads, queries, keys)
    among the arguments the stock encoder gives a layer, and `wrap` returns a layer's output as that encoder expects it.
    `distance_bias(base, distances)` computes the same bias as (..., heads) from key position minus query position.
    `distances(base)` finds the embeddings of distances (rows, width), which the stock encoder also gives every layer as
    `rel_embeddings`, and `relative(layer, them)` what a layer makes of them. `convolution` finds the one beside the
    first layer. `final_norm` finds the norm after the last layer, where there is one. `refusal` says why a
    configuration of the family cannot be computed, if it cannot.
    """

    model_types: tuple[str, ...]
    layers: Callable[[nn.Module], list[nn.Module]]
    parts: Callable[[nn.Module], LayerParts]
    embeddings: Callable[[nn.Module], EmbeddingParts]
    head: Callable[[nn.Module], HeadParts]
    features: frozenset[str] = BERT
    sequence: Callable[[nn.Module], list[nn.Module]] | None = None
    token_head: Callable[[Any, str], HeadParts] = token_head
    distances: Callable[[nn.Module], Tensor | None] = lambda base: None
    relative: Callable[[nn.Module, Tensor], Relative] | None = None
    convolution: Callable[[nn.Module], ConvolutionParts | None] = lambda base: None
    final_norm: Callable[[nn.Module], nn.LayerNorm] | None = None
    refusal: Callable[[Any], str | None] = lambda config: None
    distance_bias: Callable[[nn.Module, Tensor], Tensor] | None = None
    position_bias: Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] = no_position_bias
    wrap: Callable[[Tensor], Any] = field(default=lambda output: output)

    def layer_sequence(self, base: nn.Module) -> list[nn.Module]:
        """The layer module of every pass, in order."""
        return self.sequence(base) if self.sequence else self.layers(base)

    def layer_passes(self, base: nn.Module) -> int:
        return len(self.layer_sequence(base))

    def specs(self, base: nn.Module) -> list[LayerSpec]:
        """Of every pass."""
        first, *rest = [self.parts(layer).spec for layer in self.layer_sequence(base)]
        beside = self.convolution(base)
        if beside is None:
            return [first, *rest]
        convolution = beside.convolution
        return [replace(first, kernel=convolution.kernel_size[0], groups=convolution.groups), *rest]

    def shape(self, base: nn.Module) -> EncoderShape:
        return EncoderShape.of(self.specs(base))
