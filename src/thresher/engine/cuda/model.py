"""Weights in the form the GPU computes with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thresher.core.places import Relative, turns
from thresher.engine.cuda.beside import Beside, beside_of
from thresher.engine.cuda.products import EightBit
from thresher.engine.eight import EIGHT
from thresher.engine.kernels.distances import Distances
from thresher.engine.kernels.linear import ALIGNED
from thresher.engine.weights import Affine, HeadWeights, Layer, LayerScales, Norm, Weights, activation_name
from thresher.errors import ModelError


@dataclass(frozen=True)
class GpuLayer:
    """One layer pass. `activation` is one that the kernels know, or "none" with the function in `other`. `turns`:
    cosines and sines (positions, half a head's width) in float32, where queries and keys are rotated. window, divisor,
    distances: see the kernel of attention. The first norm of a pre-norm model may be None: identity."""

    heads: int
    qkv: Affine
    attention_output: Affine
    attention_norm: Norm | None
    ffn_in: Affine
    activation: str
    other: Callable[[Tensor], Tensor] | None
    ffn_out: Affine
    output_norm: Norm
    gated: bool = False
    pre_norm: bool = False
    turns: tuple[Tensor, Tensor] | None = None
    window: int | None = None
    divisor: float | None = None
    distances: Distances | None = None
    beside: Beside | None = None

    def projection(self, *parts: int) -> Affine:
        """The product for some of queries, keys and values (0, 1, 2), neighbours: a view of the one for all."""
        width = len(self.qkv.bias) // 3
        outputs = slice(parts[0] * width, (parts[-1] + 1) * width)
        if isinstance(self.qkv, EightBit):
            return self.qkv.part(outputs)
        return Affine(self.qkv.weight[outputs], self.qkv.bias[outputs])


@dataclass(frozen=True)
class GpuModel:
    """Matrices in half precision; norms and the distance bias in float32, where they cost nothing.

    `distance_bias` is a (2 x positions - 1, heads) view of a table in which a head's numbers are neighbours.
    """

    word: Tensor
    position: Tensor | None
    token_type: Tensor | None
    embedding_norm: Norm
    projection: Affine | None
    layers: list[GpuLayer]
    final_norm: Norm | None
    distance_bias: Tensor | None
    head: HeadWeights


def gpu_model(weights: Weights, *, dtype: torch.dtype, device: str, scales: Sequence[LayerScales] = ()) -> GpuModel:
    """Convert once; a layer that several passes share stays one layer, but not with `scales`, one for each pass, with
    which the layers' products are in eight bits."""

    def tensor(given: Tensor, kind: torch.dtype = dtype) -> Tensor:
        return given.to(device, kind).contiguous()

    def affine(given: Affine, scale: Tensor | None = None) -> Affine:
        inputs, size = given.weight.shape[1], dtype.itemsize if scale is None else EIGHT.itemsize
        if inputs * size % ALIGNED:
            raise ModelError(
                f"a matrix of the model has {inputs} inputs, and the GPU kernels need a multiple of "
                f"{ALIGNED // size}; use device = 'cpu', or backend = 'reference'"
            )
        if scale is not None:
            return EightBit.of(Affine(given.weight.to(device), given.bias.to(device)), scale.to(device), dtype)
        return Affine(tensor(given.weight), tensor(given.bias))

    def norm(given: Norm | None) -> Norm:
        if given is None:
            raise ModelError(
                "the cuda backend cannot compute models in which a norm is missing but the very first one of pre-norm "
                "layers; use device = 'cpu', or backend = 'reference' with device = 'cuda'"
            )
        return given.to(torch.float32, device)

    def maybe(given: Norm | None) -> Norm | None:
        return None if given is None else norm(given)

    def distances(given: Relative | None) -> Distances | None:
        if given is None:
            return None
        keys, queries = (None if part is None else tensor(part) for part in (given.keys, given.queries))
        return Distances(keys, queries, index_of(given.rows))

    def index_of(rows: Tensor) -> Tensor:
        """Of every distance that there can be; layers that share the rows share what is made of them."""
        if id(rows) not in indices:
            reach = len(rows) // 2
            distance = torch.arange(1 - weights.positions, weights.positions, device=rows.device)
            found = rows[distance.clamp(-reach, reach) + reach]
            indices[id(rows)] = found.to(device, torch.int32)
        return indices[id(rows)]

    def layer(given: Layer, scales: LayerScales | None) -> GpuLayer:
        def scaled(site: str) -> Affine:
            return affine(getattr(given, site), None if scales is None else getattr(scales, site))

        activation = activation_name(given.spec.activation)
        return GpuLayer(
            heads=given.spec.heads,
            qkv=scaled("qkv"),
            attention_output=scaled("attention_output"),
            attention_norm=maybe(given.attention_norm) if given is weights.layers[0] else norm(given.attention_norm),
            ffn_in=scaled("ffn_in"),
            activation=activation,
            other=given.spec.activation if activation == "none" else None,
            ffn_out=scaled("ffn_out"),
            output_norm=norm(given.output_norm),
            gated=given.spec.gated,
            pre_norm=given.spec.pre_norm,
            turns=None if given.spec.rotary_base is None else tables[given.spec.rotary_base],
            window=given.spec.window,
            divisor=given.spec.divisor,
            distances=distances(given.relative),
            beside=None if given.convolution is None else beside_of(given.convolution, affine=affine, norm=norm),
        )

    indices: dict[int, Tensor] = {}
    tables = {
        base: _tables(base, weights.positions, weights.specs[0].head_width, device)
        for base in {spec.rotary_base for spec in weights.specs if spec.rotary_base is not None}
    }
    if scales:  # of passes that share a layer, the inputs need not be alike
        layers = [layer(each, own) for each, own in zip(weights.layers, scales, strict=True)]
    else:
        made = {id(each): layer(each, None) for each in {id(each): each for each in weights.layers}.values()}
        layers = [made[id(each)] for each in weights.layers]
    bias, head = weights.distance_bias, weights.head
    return GpuModel(
        word=tensor(weights.word),
        position=None if weights.position is None else tensor(weights.position),
        token_type=None if weights.token_type is None else tensor(weights.token_type),
        embedding_norm=norm(weights.embedding_norm),
        projection=None if weights.projection is None else affine(weights.projection),
        layers=layers,
        final_norm=maybe(weights.final_norm),
        distance_bias=None if bias is None else tensor(bias.t(), torch.float32).t(),
        head=replace(
            head,
            dense=None if head.dense is None else affine(head.dense),
            norm=maybe(head.norm),
            output=None if head.output is None else affine(head.output),
        ),
    )


def _tables(base: float, positions: int, width: int, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions; both halves of a head turn alike."""
    cosines, sines = turns(torch.arange(positions), base=base, width=width)
    return tuple(table[:, : width // 2].contiguous().to(device) for table in (cosines, sines))  # type: ignore[return-value]  # two
