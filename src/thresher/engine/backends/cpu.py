"""Fast on CPUs: matrix products over all packed tokens at once, attention per group of equally long runs.

Products run in fp32, bf16 or int8. Where they are not in fp32, attention inside long runs is in bf16 if the processor
has it; what tokens receive is added up in fp32 in any case.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.layer import LayerSpec, Steps, attention_input, finish
from thresher.core.places import Relative, turns
from thresher.core.plan import PruningPlan
from thresher.core.scores import counted_queries
from thresher.engine.backends import attention
from thresher.engine.backends.attention import LOG2_E, Bias, Tiles, attend_at_once, laid_out
from thresher.engine.backends.feedforward import FeedForward, StaticFeedForward
from thresher.engine.backends.linear import LINEARS, StaticInt8, check_int8
from thresher.engine.backends.relative import long_bias, relative_bias, scaled_for_logits
from thresher.engine.backends.rotary import rotate_
from thresher.engine.backends.windows import in_windows, window_bias
from thresher.engine.inputs import Tables
from thresher.engine.plain import convolved, embedded, joined, normed
from thresher.engine.ragged import Ragged, idle_rows
from thresher.engine.supported import check_supported
from thresher.engine.weights import Affine, Convolution, Layer, LayerScales, Norm, Weights, converted
from thresher.errors import ModelError
from thresher.hardware import native_bf16_on_cpu

LONG = 64  # tokens from which on attention is in tiles: products of single heads are faster in bf16 then
ROWS = 2048  # of a product at a time, so that what is computed on the way stays in the cache and is not new memory
KEPT = 2**25 - 2**16  # bytes, just below the most that counts: see keep_freed_memory
SMALLEST = torch.finfo(torch.float32).tiny  # a run's mean score may be zero, where all its values are

Product = Callable[[Tensor], Tensor]  # (rows, in) -> (rows, out)


@dataclass(frozen=True)
class CpuLayer:
    """A layer with its matrices converted; the fp32 originals are not kept.

    `qkv` gives queries, keys and values; keys and values where only first tokens ask; values where these are alone.
    """

    spec: LayerSpec
    qkv: Product
    steps: Steps[Tensor]
    relative: Relative | None = None  # times what logits are divided and multiplied by
    convolution: Convolution | None = None


class Cpu:
    """Runs of equal length are kept side by side (`longest_first`), so that a group of them is a plain view."""

    name = device = "cpu"
    longest_first = True
    core_each = True
    # oneDNN builds and keeps a program for every new shape, which costs time and memory, and in a stream nearly every
    # batch would have shapes of its own.
    row_step = 16

    def __init__(
        self, weights: Weights, plan: PruningPlan, *, dtype: str = "fp32", scales: Sequence[LayerScales] = ()
    ) -> None:
        """`scales`, one per layer, are what int8-static needs."""
        check_supported("cpu", weights.specs)
        keep_freed_memory()
        self.plan, self.shape, self.tables = plan, weights.shape, Tables.of(weights)
        self.dtype, self.scales = dtype, scales
        # int8 products take and give float32; only bf16 keeps its activations in half precision.
        self.activation_dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        # Of attention inside long runs, by the run's length alone: no text's result depends on the rest of its batch.
        self.long_dtype = torch.bfloat16 if dtype != "fp32" and native_bf16_on_cpu() else torch.float32
        if dtype.startswith("int8"):
            check_int8()
        weights = converted(weights, dtype=torch.float32, device=self.device)
        if dtype == "int8-static":
            check_scales(scales, weights)
        self.first_query, self.layers = self._layers(weights)
        self.turns = {
            base: turns(torch.arange(weights.positions), base=base, width=weights.specs[0].head_width)
            for base in {spec.rotary_base for spec in weights.specs if spec.rotary_base is not None}
        }
        self.weights = replace(weights, layers=[])

    def _layers(self, weights: Weights) -> "tuple[Product | None, list[CpuLayer]]":
        """Queries of first tokens where these alone ask, and the layers with what is left of their projections."""
        alone, width = self.plan.alone, weights.shape.width
        first_query = (
            None if alone == self.plan.layers else self._projection(weights.layers[alone], alone, slice(width))
        )
        made: dict[int, CpuLayer] = {}  # ALBERT's passes share one layer
        projections: dict[tuple[int, int], Product] = {}
        layers = []
        for index, layer in enumerate(weights.layers):
            left_out = width * ((index >= alone) + (index > alone))  # of the outputs: queries, and then keys
            part = (id(layer), left_out)
            if part not in projections:
                projections[part] = self._projection(layer, index, slice(left_out, None))
            if id(layer) not in made:
                made[id(layer)] = self._convert(layer, index, projections[part])
            layers.append(replace(made[id(layer)], qkv=projections[part]))
        return first_query, layers

    def embed(self, input_ids: Ragged, token_types: Tensor | None) -> Tensor:
        rows = self.weights.position_rows(input_ids)
        return embedded(self.weights, input_ids.values, rows, token_types).to(self.activation_dtype)

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        layer, tiles = self.layers[index], Tiles()
        heads = layer.spec.heads
        context = torch.empty(hidden.shape, dtype=self.activation_dtype)
        context[len(runs.positions) :] = 0  # idle rows
        scores = torch.empty(len(runs.positions)) if scored else None
        counted = counted_queries(runs.positions, self.plan.score_queries) if scored else None
        for start, count, length, qkv in self._projected_groups(layer, hidden, runs, alone_from=LONG):
            rows, long = slice(start, start + count * length), length >= LONG
            dtype = self.long_dtype if long else torch.float32
            own = qkv.to(dtype) if long else qkv  # of many numbers, two simple copies beat one
            query, key, value = laid_out(_views(own, 3, count, heads), dtype)
            positions = runs.positions[rows].view(count, length)
            (out,) = _views(context[rows], 1, count, heads)
            if long and layer.relative is not None:
                bias: Bias | None = long_bias(layer.relative, query, key, positions=positions[0])
            else:
                bias = self._bias(layer, query, key, at=positions, of=positions)
            asked = None if counted is None else counted[rows]
            if long and layer.spec.window is not None:
                places, window = positions[0], layer.spec.window  # long runs come alone
                received = in_windows(
                    tiles, query, key, value, places, window=window, out=out, scored=scored, counted=asked
                )
            elif long:
                received = tiles.attend(
                    query, key, value, keys=length, out=out, bias=bias, scored=scored, counted=asked
                )
            else:
                asked = None if asked is None else asked.view(count, length)
                received = attend_at_once(query, key, value, out=out, bias=bias, scored=scored, counted=asked)
            if scores is not None and received is not None:
                if self.plan.score == "value":
                    received *= torch.linalg.vector_norm(value[:, :length], dim=-1, dtype=torch.float32)
                torch.sum(received.view(count, heads, length), dim=1, out=scores[rows].view(count, length))
        return context, None if scores is None else self._relative(scores, runs, heads, counted)

    def _projected_groups(
        self, layer: CpuLayer, hidden: Tensor, runs: Ragged, *, alone_from: float = math.inf
    ) -> Iterator[tuple[int, int, int, Tensor]]:
        """Groups of equally long runs, (first row, number of runs, length), each with what it is projected to.

        About ROWS rows are projected at a time. Runs that come alone may meet attention in bfloat16: then a product
        that can give it does.
        """
        groups = groups_of_equal_length(runs, heads=layer.spec.heads, alone_from=alone_from)
        for piece in in_pieces(groups, ROWS):
            first, (last, count, length) = piece[0][0], piece[-1]
            rows = last + count * length - first
            rows += idle_rows(rows, self.row_step)  # neighbours, or idle ones at the end
            end = min(first + rows, len(hidden))
            begin = max(0, end - rows)
            half = self.long_dtype == torch.bfloat16 and alone_from <= length  # the last of a piece is its shortest
            half = half and layer.spec.rotary_base is None
            projected = self._projected(layer, hidden[begin:end], half=half)
            qkv = self._rotated(layer.spec, projected, runs.positions[begin:end])
            for start, count, length in piece:
                yield start, count, length, qkv[start - begin : start - begin + count * length]

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        layer = self.layers[index]
        heads = layer.spec.heads
        first = F.pad(runs.first, (0, idle_rows(len(runs.first), self.row_step)))
        assert self.first_query is not None  # the plan has a layer for first tokens only
        # First tokens are at position 0, where rotations leave queries as they are.
        queries = self.first_query(attention_input(layer.spec, layer.steps, hidden.index_select(0, first)))
        context = torch.empty(len(runs.first), hidden.shape[-1], dtype=self.activation_dtype)
        done = 0
        for start, count, length, key_value in self._projected_groups(layer, hidden, runs):
            rows, texts = slice(start, start + count * length), slice(done, done + count)
            (query,) = laid_out(_views(queries[texts], 1, count, heads), torch.float32)
            key, value = laid_out(_views(key_value, 2, count, heads), torch.float32)
            positions = runs.positions[rows].view(count, length)
            bias = self._bias(layer, query, key, at=positions[:, :1], of=positions)
            (out,) = _views(context[texts], 1, count, heads)
            attend_at_once(query, key, value, out=out, bias=bias)
            done += count
        return context

    def _projected(self, layer: CpuLayer, hidden: Tensor, *, half: bool = False) -> Tensor:
        """As much of queries, keys and values as the layer needs; half: bfloat16 is what they are rounded to next."""
        states = attention_input(layer.spec, layer.steps, hidden)
        return layer.qkv.in_half(states) if half and isinstance(layer.qkv, StaticInt8) else layer.qkv(states)

    def _rotated(self, spec: LayerSpec, projected: Tensor, positions: Tensor) -> Tensor:
        """All parts but the last, which are values, turned by the positions of live rows, in place. (rows, parts x
        width): all three, or keys and values."""
        if spec.rotary_base is None:
            return projected
        turning = projected[: len(positions), : -spec.width].view(len(positions), -1, spec.head_width)
        rotate_(turning, *(F.embedding(positions, table) for table in self.turns[spec.rotary_base]))
        return projected

    def attend_alone(self, index: int, hidden: Tensor) -> Tensor:
        return self._projected(self.layers[index], hidden)

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        layer = self.layers[index]
        if len(hidden) > ROWS:
            parts = zip(torch.split(context, ROWS), torch.split(hidden, ROWS), strict=True)
            return torch.cat([self.finish(index, mixed, states) for mixed, states in parts])
        return finish(layer.spec, layer.steps, context, hidden)

    def convolve(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor | None:
        return convolved(self.layers[index].convolution, hidden, runs)

    def join(self, index: int, hidden: Tensor, beside: Tensor) -> Tensor:
        return joined(self.layers[index].convolution, hidden, beside)

    def final(self, states: Tensor) -> Tensor:
        return normed(states, self.weights.final_norm)

    def head(self, states: Tensor) -> Tensor:
        """In fp32: one row per text, so its speed does not matter and its precision does."""
        return self.weights.head(states.float())

    def _bias(self, layer: CpuLayer, query: Tensor, key: Tensor, *, at: Tensor, of: Tensor) -> Bias | None:
        """What distances add to logits; at (count, queries), of (count, keys): original positions."""
        table, spec = self.weights.distance_bias, layer.spec
        if layer.relative is not None:
            return relative_bias(layer.relative, query, key, at=at, of=of)
        if spec.window is not None:
            return window_bias(at, of, window=spec.window, heads=spec.heads)
        if table is None:
            return None

        def of_rows(rows: slice) -> Tensor:
            distance = of[:, None, :] - at[:, rows, None] + len(table) // 2
            return F.embedding(distance, table).permute(0, 3, 1, 2)  # several times as fast as table[distance]

        return of_rows

    def _relative(self, received: Tensor, runs: Ragged, heads: int, counted: Tensor | None) -> Tensor:
        """(total,) scores, 1 on average in every run; of all runs at once, because a batch may have many groups."""
        by_attention = self.plan.score == "attention"
        if by_attention and counted is None:
            return received.div_(heads)
        owner = torch.repeat_interleave(runs.lengths)
        # By attention the mean is known: the heads times the share of the queries that count.
        given = received if counted is None or not by_attention else counted.float().mul_(heads)
        mean = torch.zeros(len(runs.lengths)).index_add_(0, owner, given).div_(runs.lengths)
        return received.div_(mean.clamp_(min=SMALLEST)[owner])

    def _convert(self, layer: Layer, index: int, qkv: Product) -> CpuLayer:
        def norm(given: Norm | None) -> Product:
            own = None if given is None else given.to(self.activation_dtype)
            return lambda values: normed(values, own)

        steps = Steps(
            output=self._linear(layer.attention_output, index, "attention_output"),
            norms=(norm(layer.attention_norm), norm(layer.output_norm)),
            feed_forward=self._feed_forward(layer, index),
            add=lambda values, residual: values.add_(residual),
        )
        relative = None if layer.relative is None else scaled_for_logits(layer.relative, layer.spec)
        return CpuLayer(layer.spec, qkv, steps, relative, layer.convolution)

    def _projection(self, layer: Layer, index: int, outputs: slice) -> Product:
        """The part of queries, keys and values that is asked for."""
        whole = _scaled_queries(layer.qkv, layer.spec)
        part = Affine(whole.weight[outputs].clone(), whole.bias[outputs].clone())  # a view would keep all of it
        return self._linear(part, index, "qkv")

    def _linear(self, affine: Affine, index: int, site: str) -> Product:
        if self.dtype == "int8-static":
            return StaticInt8(affine, getattr(self.scales[index], site))
        return LINEARS[self.dtype](affine)

    def _feed_forward(self, layer: Layer, index: int) -> Product:
        if self.dtype == "int8-static":
            return StaticFeedForward(layer, self.scales[index])
        kind = LINEARS[self.dtype]
        return FeedForward(layer.spec, kind(layer.ffn_in), kind(layer.ffn_out))


def keep_freed_memory() -> None:
    """Let what a batch frees stay with the process, for the next batch: new pages cost more than to fill them.

    glibc learns from the largest block that was freed, 32 MiB at most, and then gives memory back only where twice as
    much is free in one piece. Whoever set its MALLOC_ variables has decided otherwise, and stays right.
    """
    torch.empty(KEPT, dtype=torch.uint8)


def groups_of_equal_length(
    runs: Ragged, *, heads: int = 1, alone_from: float = math.inf
) -> Iterator[tuple[int, int, int]]:
    """Neighbouring runs of one length: (first row, number of runs, length); big groups in pieces, long runs alone."""
    start, count, length = 0, 0, 0
    for size in runs.lengths.tolist():
        full = (count + 1) * heads * size * size > attention.TILE or size >= alone_from
        if count and (size != length or full):
            yield start, count, length
            start, count = start + count * length, 0
        length, count = size, count + 1
    yield start, count, length


def in_pieces(groups: Iterable[tuple[int, int, int]], rows: int) -> Iterator[list[tuple[int, int, int]]]:
    """Neighbouring groups, (first row, number of runs, length), that have about so many rows together."""
    piece: list[tuple[int, int, int]] = []
    for start, count, length in groups:
        if piece and start + count * length - piece[0][0] > rows:
            yield piece
            piece = []
        piece.append((start, count, length))
    yield piece


def _views(packed: Tensor, parts: int, count: int, heads: int) -> Tensor:
    """(rows, parts x width) -> (parts, count, heads, length, head width), where `count` runs have these rows."""
    return packed.view(count, len(packed) // count, parts, heads, -1).permute(2, 0, 3, 1, 4)


def check_scales(scales: Sequence[LayerScales], weights: Weights) -> None:
    """Scales of another model must not get as far as a product."""
    expected = [spec.width for spec in weights.specs]
    if [len(layer.qkv) for layer in scales] != expected:
        raise ModelError(f"int8 scales are not those of this model ({len(expected)} layers); quantize the run again")


def _scaled_queries(qkv: Affine, spec: LayerSpec) -> Affine:
    """Attention divides logits and takes powers of two; the queries' weights do both once."""
    factor = torch.ones(3 * spec.width)
    factor[: spec.width] = LOG2_E / spec.divisor
    return Affine(weight=qkv.weight * factor[:, None], bias=qkv.bias * factor)
