"""Fast on CPUs: matrix products over all packed tokens at once, attention per group of equally long runs.

Products run in fp32, bf16 or int8; attention and scores always in fp32, because they are a few percent of the work and
decide what is dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.backends.feedforward import FeedForward, StaticFeedForward
from thresher.engine.backends.linear import LINEARS, StaticInt8, check_int8
from thresher.engine.inputs import Tables
from thresher.engine.ragged import Ragged, idle_rows
from thresher.engine.weights import Affine, Layer, LayerScales, Norm, Weights, converted
from thresher.errors import ModelError

# Attention probabilities held at a time, in numbers: 16 MiB of them, whatever the batch.
PROBABILITIES = 2**22
SMALLEST = torch.finfo(torch.float32).tiny  # a run's mean score may be zero, where all its values are

Product = Callable[[Tensor], Tensor]  # (rows, in) -> (rows, out)


@dataclass(frozen=True)
class CpuLayer:
    """A layer with its matrices converted; the fp32 originals are not kept.

    `qkv` gives queries, keys and values; keys and values where only first tokens ask; values where these are alone.
    """

    heads: int
    qkv: Product
    attention_output: Product
    attention_norm: Norm
    feed_forward: Product
    output_norm: Norm


class Cpu:
    """Runs of equal length are kept side by side (`longest_first`), so that a group of them is a plain view."""

    name = device = "cpu"
    longest_first = True
    # oneDNN builds and keeps a program for every new shape, which costs time and memory, and in a stream nearly every
    # batch would have shapes of its own.
    row_step = 16

    def __init__(
        self, weights: Weights, plan: PruningPlan, *, dtype: str = "fp32", scales: Sequence[LayerScales] = ()
    ) -> None:
        """`scales`, one per layer, are what int8-static needs."""
        self.plan, self.shape, self.tables = plan, weights.shape, Tables.of(weights)
        self.dtype, self.scales = dtype, scales
        # int8 products take and give float32; only bf16 keeps its activations in half precision.
        self.activation_dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        if dtype.startswith("int8"):
            check_int8()
        weights = converted(weights, dtype=torch.float32, device=self.device)
        if dtype == "int8-static":
            check_scales(scales, weights)
        self.first_query, self.layers = self._layers(weights)
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
        weights = self.weights
        total = F.embedding(input_ids.values, weights.word) + weights.position[weights.position_rows(input_ids)]
        if weights.token_type is not None:
            total += weights.token_type[0] if token_types is None else weights.token_type[token_types]
        hidden = _normed(total, weights.embedding_norm)
        if weights.projection is not None:
            hidden = F.linear(hidden, weights.projection.weight, weights.projection.bias)
        return hidden.to(self.activation_dtype)

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        layer, width = self.layers[index], hidden.shape[-1]
        qkv = layer.qkv(hidden)
        context = torch.empty(len(hidden), width, dtype=torch.float32)
        context[len(runs.positions) :] = 0  # idle rows
        scores = torch.empty(len(runs.positions), dtype=torch.float32) if scored else None
        for start, count, length in groups_of_equal_length(runs, heads=layer.heads):
            rows = slice(start, start + count * length)
            query, key, value = _by_head(qkv[rows], parts=3, count=count, heads=layer.heads)
            positions = runs.positions[rows].view(count, length)
            probabilities = self._probabilities(query, key, at=positions, of=positions)
            _place(torch.bmm(probabilities, value), context[rows], count=count)
            if scores is not None:
                self._receive(probabilities, value, scores[rows].view(count, length))
        return context.to(self.activation_dtype), None if scores is None else self._relative(scores, runs, layer.heads)

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        heads, width = self.layers[index].heads, hidden.shape[-1]
        first = F.pad(runs.first, (0, idle_rows(len(runs.first), self.row_step)))
        assert self.first_query is not None  # the plan has a layer for first tokens only
        queries = self.first_query(hidden.index_select(0, first))
        key_value = self.layers[index].qkv(hidden)
        context = torch.empty(len(runs.first), width, dtype=torch.float32)
        done = 0
        for start, count, length in groups_of_equal_length(runs, heads=heads):
            rows, texts = slice(start, start + count * length), slice(done, done + count)
            (query,) = _by_head(queries[texts], parts=1, count=count, heads=heads)
            key, value = _by_head(key_value[rows], parts=2, count=count, heads=heads)
            positions = runs.positions[rows].view(count, length)
            probabilities = self._probabilities(query, key, at=positions[:, :1], of=positions)
            _place(torch.bmm(probabilities, value), context[texts], count=count)
            done += count
        return context.to(self.activation_dtype)

    def attend_alone(self, index: int, hidden: Tensor) -> Tensor:
        return self.layers[index].qkv(hidden)

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        layer = self.layers[index]
        attended = _normed(layer.attention_output(context).add_(hidden), layer.attention_norm)
        return _normed(layer.feed_forward(attended).add_(attended), layer.output_norm)

    def head(self, states: Tensor) -> Tensor:
        """In fp32: one row per text, so its speed does not matter and its precision does."""
        return self.weights.head(states.float())

    def _probabilities(self, query: Tensor, key: Tensor, *, at: Tensor, of: Tensor) -> Tensor:
        """(count x heads, queries, keys) in fp32; at (count, queries), of (count, keys): original positions."""
        logits = torch.bmm(query, key.transpose(1, 2))
        table = self.weights.distance_bias
        if table is not None:
            distance = of[:, None, :] - at[:, :, None] + len(table) // 2
            bias = F.embedding(distance, table).permute(0, 3, 1, 2)  # several times as fast as table[distance]
            logits.view(bias.shape).add_(bias)
        return torch.softmax(logits, dim=-1)

    def _receive(self, probabilities: Tensor, value: Tensor, out: Tensor) -> None:
        """What each token receives from all queries in all heads, into out (count, length).

        probabilities: (count x heads, length, length), value: (count x heads, length, head width), both fp32.
        """
        count, length = out.shape
        if self.plan.score == "value":
            probabilities = probabilities.sum(dim=1).mul_(torch.linalg.vector_norm(value, dim=-1))
        torch.sum(probabilities.view(count, -1, length), dim=1, out=out)

    def _relative(self, received: Tensor, runs: Ragged, heads: int) -> Tensor:
        """(total,) scores, 1 on average in every run; of all runs at once, because a batch may have many groups."""
        if self.plan.score == "attention":
            return received.div_(heads)
        owner = torch.repeat_interleave(runs.lengths)
        mean = torch.zeros(len(runs.lengths)).index_add_(0, owner, received).div_(runs.lengths)
        return received.div_(mean.clamp_(min=SMALLEST)[owner])

    def _convert(self, layer: Layer, index: int, qkv: Product) -> CpuLayer:
        def norm(given: Norm) -> Norm:
            return Norm(given.weight.to(self.activation_dtype), given.bias.to(self.activation_dtype), given.epsilon)

        return CpuLayer(
            heads=layer.heads,
            qkv=qkv,
            attention_output=self._linear(layer.attention_output, index, "attention_output"),
            attention_norm=norm(layer.attention_norm),
            feed_forward=self._feed_forward(layer, index),
            output_norm=norm(layer.output_norm),
        )

    def _projection(self, layer: Layer, index: int, outputs: slice) -> Product:
        """The part of queries, keys and values that is asked for."""
        whole = _scaled_queries(layer.qkv, layer.heads)
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
        return FeedForward(kind(layer.ffn_in), layer.activation, kind(layer.ffn_out))


def groups_of_equal_length(runs: Ragged, *, heads: int = 1) -> Iterator[tuple[int, int, int]]:
    """Neighbouring runs of one length: (first row, number of runs, length); big groups in pieces."""
    start, count, length = 0, 0, 0
    for size in runs.lengths.tolist():
        full = (count + 1) * heads * size * size > PROBABILITIES
        if count and (size != length or full):
            yield start, count, length
            start, count = start + count * length, 0
        length, count = size, count + 1
    yield start, count, length


def _by_head(packed: Tensor, *, parts: int, count: int, heads: int) -> Tensor:
    """(rows, parts x width) -> (parts, count x heads, length, head width), in fp32."""
    length = len(packed) // count
    block = packed.view(count, length, parts, heads, -1).permute(2, 0, 3, 1, 4)
    in_order = block.to(torch.float32, memory_format=torch.contiguous_format).contiguous()  # copies once in any dtype
    return in_order.view(parts, count * heads, length, -1)


def _place(by_head: Tensor, rows: Tensor, *, count: int) -> None:
    """(count x heads, length, head width) into (count x length, width)."""
    length, size = by_head.shape[1:]
    rows.view(count, length, -1, size).copy_(by_head.view(count, -1, length, size).transpose(1, 2))


def check_scales(scales: Sequence[LayerScales], weights: Weights) -> None:
    """Scales of another model must not get as far as a product."""
    expected = [len(layer.attention_norm.weight) for layer in weights.layers]
    if [len(layer.qkv) for layer in scales] != expected:
        raise ModelError(f"int8 scales are not those of this model ({len(expected)} layers); quantize the run again")


def _scaled_queries(qkv: Affine, heads: int) -> Affine:
    """Attention divides by the root of the head width; the queries' weights do it once and for all."""
    width = len(qkv.bias) // 3
    factor = torch.ones(3 * width)
    factor[:width] = (width // heads) ** -0.5
    return Affine(weight=qkv.weight * factor[:, None], bias=qkv.bias * factor)


def _normed(values: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(values, values.shape[-1:], norm.weight, norm.bias, norm.epsilon)
