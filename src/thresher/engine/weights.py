"""A model's weights in the form the engine computes with: query, key and value in one matrix, no Hugging Face."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thresher.core.cost import EncoderShape
from thresher.core.layer import LayerSpec
from thresher.core.places import Relative
from thresher.core.scores import at_least_float32
from thresher.engine.ragged import Ragged
from thresher.errors import ModelError
from thresher.models.adapter import ConvolutionParts, Family
from thresher.models.attach import encoder_shape
from thresher.models.heads import head_of
from thresher.models.registry import family_of


@dataclass(frozen=True)
class Affine:
    """y = x @ weight.T + bias. weight: (out, in), bias: (out,)."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Norm:
    """Layer normalisation. weight, bias: (width,)."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "Norm":
        return Norm(self.weight.to(device, dtype), self.bias.to(device, dtype), self.epsilon)


@dataclass(frozen=True)
class Layer:
    """One layer pass: what it is, and its weights."""

    spec: LayerSpec
    qkv: Affine  # width -> 3 x width: all queries, all keys, all values
    attention_output: Affine
    attention_norm: Norm | None  # None: identity, as the other one
    ffn_in: Affine  # width -> ffn_width; where it is gated, twice that: what is activated, and the gate
    ffn_out: Affine
    output_norm: Norm | None
    relative: Relative | None = None  # made once: embeddings of distances are the same for all texts
    convolution: "Convolution | None" = None


@dataclass(frozen=True)
class Convolution:
    """Over a layer's input, added to its output before the norm. weight: (width, width / groups, kernel)."""

    weight: Tensor
    bias: Tensor
    groups: int
    activation: Callable[[Tensor], Tensor]
    norm: Norm


@dataclass(frozen=True)
class LayerScales:
    """Static int8: what 1 is worth in each product's int8 input: (in,) each, and one number for ffn_out."""

    qkv: Tensor
    attention_output: Tensor
    ffn_in: Tensor
    ffn_out: Tensor


@dataclass(frozen=True)
class HeadWeights:
    """From what the head reads to its outputs: a layer, an activation and sometimes a norm, then the output layer; an
    embedding has none of them, and may be scaled to length 1 and then cut to the first `cut_to` numbers."""

    reads: str
    dense: Affine | None = None
    activation: Callable[[Tensor], Tensor] | None = None
    norm: Norm | None = None
    output: Affine | None = None
    normalised: bool = False
    cut_to: int | None = None

    def shaped(self, outputs: Tensor) -> Tensor:
        """What is left to do after the products. (texts, outputs) in float32 or better -> (texts, fewer or as many)."""
        outputs = F.normalize(outputs, dim=-1) if self.normalised else outputs
        return outputs if self.cut_to is None else outputs[:, : self.cut_to]

    def __call__(self, states: Tensor) -> Tensor:
        """(texts, width) states that were read -> (texts, outputs), in plain torch and the states' dtype."""
        if self.dense is not None:
            states = F.linear(states.to(self.dense.weight.dtype), self.dense.weight, self.dense.bias)
        if self.activation is not None:
            states = self.activation(states)
        if self.norm is not None:
            states = F.layer_norm(states, states.shape[-1:], self.norm.weight, self.norm.bias, self.norm.epsilon)
        if self.output is not None:
            states = F.linear(states, self.output.weight, self.output.bias)
        return self.shaped(at_least_float32(states))


@dataclass(frozen=True)
class Weights:
    """The whole model. `distance_bias` is (2 x positions - 1, heads) by key minus query position, or None."""

    word: Tensor  # (vocabulary, embedding width)
    position: Tensor | None  # (rows, embedding width)
    positions: int  # the longest text in tokens
    position_offset: int  # the row of a text's first token
    uncounted_id: int | None  # see EmbeddingParts
    token_type: Tensor | None
    embedding_norm: Norm
    projection: Affine | None
    layers: list[Layer]
    final_norm: Norm | None
    distance_bias: Tensor | None
    head: "HeadWeights"
    shape: EncoderShape

    @property
    def specs(self) -> list[LayerSpec]:
        return [layer.spec for layer in self.layers]

    def position_rows(self, input_ids: Ragged) -> Tensor:
        """(total,) row of each token's position embedding."""
        ids, plain = input_ids.values, input_ids.positions + self.position_offset
        if self.uncounted_id is None or bool((counted := ids != self.uncounted_id).all()):
            return plain
        before = torch.cat([counted.new_zeros(1, dtype=torch.long), counted.long().cumsum(0)])
        rank = before[1:] - torch.repeat_interleave(before[input_ids.first], input_ids.lengths)
        return torch.where(counted, rank + self.position_offset - 1, self.uncounted_id)


def activation_name(activation: Callable[[Tensor], Tensor]) -> str:
    """gelu, gelu_tanh, silu, or none if unknown: by what it computes, because families name and wrap them in many ways.

    Some are GELU until they are cut off, so large values are looked at, too."""
    probe = torch.cat([torch.linspace(-6, 6, 97), torch.linspace(-1000, 1000, 101)])
    found = activation(probe)
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        if torch.allclose(found, F.gelu(probe, approximate=approximate), atol=1e-6, rtol=0):
            return name
    return "silu" if torch.allclose(found, F.silu(probe), atol=1e-6, rtol=0) else "none"


@torch.no_grad()
def read_weights(model: Any) -> Weights:
    """Copy the weights of a Hugging Face classifier or of an `Embedder`, in float32."""
    family, base = family_of(model), model.base_model
    embedding = family.embeddings(base)
    position = None if embedding.position is None else _copy(embedding.position.weight)
    made = {module: _layer(family, module, family.distances(base)) for module in family.layers(base)}
    layers = [made[module] for module in family.layer_sequence(base)]  # ALBERT's passes share one
    if (beside := family.convolution(base)) is not None:
        layers[0] = replace(layers[0], spec=family.specs(base)[0], convolution=_convolution(beside))
    bias = None
    if family.distance_bias is not None:
        distances = torch.arange(1 - embedding.positions, embedding.positions, device=embedding.word.weight.device)
        bias = _copy(family.distance_bias(base, distances))
    return Weights(
        word=_copy(embedding.word.weight),
        position=position,
        positions=embedding.positions,
        position_offset=embedding.position_offset,
        uncounted_id=embedding.uncounted_id,
        token_type=None if embedding.token_type is None else _copy(embedding.token_type.weight),
        embedding_norm=_norm(embedding.norm),
        projection=None if embedding.projection is None else _affine(embedding.projection),
        layers=layers,
        final_norm=None if family.final_norm is None else _norm(family.final_norm(base)),
        distance_bias=bias,
        head=_head(model, family),
        shape=encoder_shape(model),
    )


def converted(weights: Weights, *, dtype: torch.dtype, device: str) -> Weights:
    """The same weights in another dtype and place; a layer that several passes share stays one layer."""
    seen: dict[int, Any] = {}

    def convert(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device, dtype) if part.is_floating_point() else part.to(device)
        if isinstance(part, list):
            return [convert(item) for item in part]
        if isinstance(part, Affine | Norm | Relative | Convolution | Layer | HeadWeights | Weights):
            if id(part) not in seen:
                values = {item.name: convert(getattr(part, item.name)) for item in fields(part)}
                seen[id(part)] = replace(part, **values)
            return seen[id(part)]
        return part

    result: Weights = convert(weights)
    return result


def _head(model: Any, family: Any) -> HeadWeights:
    head = head_of(model)
    if head.means == "embedding":
        return HeadWeights(head.reads, normalised=head.normalised, cut_to=head.width)
    parts = family.token_head(model, head.means) if head.reads == "tokens" else family.head(model)
    dense = None if parts.dense is None else _affine(parts.dense)
    norm = None if parts.norm is None else _norm(parts.norm)
    return HeadWeights(head.reads, dense, parts.activation, norm, _affine(parts.output))


def _layer(family: Family, module: nn.Module, distances: Tensor | None) -> Layer:
    parts, relative = family.parts(module), None
    if family.relative is not None and distances is not None and parts.spec.relative_rows:
        found = family.relative(module, distances)
        keys, queries = (None if part is None else _copy(part) for part in (found.keys, found.queries))
        relative = Relative(keys, queries, found.rows)
    return Layer(
        spec=parts.spec,
        qkv=_affine(*parts.qkv),
        attention_output=_affine(parts.attention_output),
        attention_norm=_norm_or_identity(parts.attention_norm),
        ffn_in=_affine(*parts.ffn_in),
        ffn_out=_affine(parts.ffn_out),
        output_norm=_norm_or_identity(parts.output_norm),
        relative=relative,
    )


def _convolution(parts: ConvolutionParts) -> Convolution:
    module = parts.convolution
    bias = module.weight.new_zeros(module.out_channels) if module.bias is None else module.bias
    return Convolution(_copy(module.weight), _copy(bias), module.groups, parts.activation, _norm(parts.norm))


def _affine(*linears: nn.Linear) -> Affine:
    """The outputs of several one after the other. A bias that is not there is zeros: products add it for nothing."""
    for linear in linears:
        _check_plain(linear)
    biases = [
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears
    ]
    return Affine(
        weight=torch.cat([_copy(linear.weight) for linear in linears]),
        bias=torch.cat([_copy(bias) for bias in biases]),
    )


def _check_plain(linear: Any) -> None:
    """Refuse what multiplies with more, or other, than its weights: an adapter would be left out without a word."""
    if not isinstance(linear, nn.Linear) or not linear.weight.is_floating_point():
        kind = f"{type(linear).__module__}.{type(linear).__qualname__}"
        raise ModelError(
            f"a product of the model is a {kind}, and the engine reads plain torch.nn.Linear with weights in floating "
            "point; merge adapters into the weights (merge_and_unload), and load the model without quantization"
        )


def _norm_or_identity(norm: Any) -> Norm | None:
    return None if isinstance(norm, nn.Identity) else _norm(norm)


def _norm(norm: Any) -> Norm:
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return Norm(weight=_copy(norm.weight), bias=_copy(bias), epsilon=norm.eps)


def _copy(tensor: Tensor) -> Tensor:
    """At least float32 (float64 stays, for tests to the last digit)."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()
