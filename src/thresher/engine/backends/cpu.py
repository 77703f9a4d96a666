"""Fast on CPUs: matrix products over all packed tokens at once, attention per group of equally long runs.

Products run in fp32, bf16 or int8; attention and scores always in fp32, because they are a few percent of the work and
decide what is dropped.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.engine.backends.linear import LINEARS, Linear
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, Layer, Norm, Weights, converted


class Cpu:
    """Runs of equal length are kept side by side (`longest_first`), so that a group of them is a plain view."""

    name = "cpu"
    longest_first = True

    def __init__(self, dtype: str = "fp32") -> None:
        self.dtype = dtype
        # int8 products take and give float32; only bf16 keeps its activations in half precision.
        self.stream = torch.bfloat16 if dtype == "bf16" else torch.float32

    def prepare(self, weights: Weights) -> None:
        self.weights = weights = converted(weights, dtype=torch.float32)
        kind = LINEARS[self.dtype]
        # ALBERT's passes share one layer, and so share its converted matrices.
        made: dict[int, dict[str, Linear]] = {}
        self.layers = [made.setdefault(id(layer), self._convert(layer, kind)) for layer in weights.layers]
        last = weights.layers[-1].qkv
        width = weights.shape.width
        self.last_query = kind(Affine(last.weight[:width], last.bias[:width]))
        self.last_key_value = kind(Affine(last.weight[width:], last.bias[width:]))
        norms = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.output_norm)]
        self.norms = {id(norm): self._norm(norm) for norm in norms}

    def embed(self, input_ids: Ragged, token_types: Tensor | None) -> Tensor:
        weights = self.weights
        total = F.embedding(input_ids.values, weights.word) + weights.position[input_ids.positions]
        if weights.token_type is not None:
            total += weights.token_type[0] if token_types is None else weights.token_type[token_types]
        norm = weights.embedding_norm
        hidden = F.layer_norm(total, total.shape[-1:], norm.weight, norm.bias, norm.epsilon)
        if weights.projection is not None:
            hidden = F.linear(hidden, weights.projection.weight, weights.projection.bias)
        return hidden.to(self.stream)

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        heads, width = self.weights.layers[index].heads, hidden.shape[-1]
        qkv = self.layers[index]["qkv"](hidden)
        context = torch.empty(len(hidden), width, dtype=torch.float32)
        scores = torch.empty(len(hidden), dtype=torch.float32) if scored else None
        for start, count, length in groups_of_equal_length(runs):
            rows = slice(start, start + count * length)
            block = qkv[rows].view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = block.to(torch.float32, memory_format=torch.contiguous_format)
            logits = torch.matmul(query, key.transpose(2, 3)).mul_(query.shape[-1] ** -0.5)
            bias = self._bias(runs, rows, count=count, length=length)
            probabilities = torch.softmax(logits if bias is None else logits.add_(bias), dim=-1)
            context[rows] = torch.matmul(probabilities, value).transpose(1, 2).reshape(count * length, width)
            if scores is not None:
                scores[rows] = probabilities.sum(dim=(1, 2)).div_(heads).flatten()
        return context.to(self.stream), scores

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        heads, width = self.weights.layers[index].heads, hidden.shape[-1]
        queries = self.last_query(hidden[runs.first]).view(-1, heads, 1, width // heads).float()
        key_value = self.last_key_value(hidden)
        context = torch.empty(len(queries), width, dtype=torch.float32)
        done = 0
        for start, count, length in groups_of_equal_length(runs):
            rows = slice(start, start + count * length)
            block = key_value[rows].view(count, length, 2, heads, -1).permute(2, 0, 3, 1, 4)
            key, value = block.to(torch.float32, memory_format=torch.contiguous_format)
            query = queries[done : done + count]
            logits = torch.matmul(query, key.transpose(2, 3)).mul_(query.shape[-1] ** -0.5)
            bias = self._bias(runs, rows, count=count, length=length, first_only=True)
            probabilities = torch.softmax(logits if bias is None else logits.add_(bias), dim=-1)
            context[done : done + count] = torch.matmul(probabilities, value).reshape(count, width)
            done += count
        return context.to(self.stream)

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        layer, linears = self.weights.layers[index], self.layers[index]
        attended = self._normed(linears["attention_output"](context).add_(hidden), layer.attention_norm)
        inner = layer.activation(linears["ffn_in"](attended))
        return self._normed(linears["ffn_out"](inner).add_(attended), layer.output_norm)

    def head(self, hidden: Tensor) -> Tensor:
        """In fp32: one row per text, so its speed does not matter and its precision does."""
        weights, hidden = self.weights, hidden.float()
        pooled = weights.head_activation(F.linear(hidden, weights.head_dense.weight, weights.head_dense.bias))
        return F.linear(pooled, weights.head_output.weight, weights.head_output.bias)

    def _bias(self, runs: Ragged, rows: slice, *, count: int, length: int, first_only: bool = False) -> Tensor | None:
        """(count, heads, queries, keys) relative position bias from original positions, or None."""
        table = self.weights.distance_bias
        if table is None:
            return None
        positions = runs.positions[rows].view(count, length)
        queries = positions[:, :1] if first_only else positions
        distance = positions[:, None, :] - queries[:, :, None] + len(table) // 2
        return table[distance].permute(0, 3, 1, 2)

    def _convert(self, layer: Layer, kind: type[Linear]) -> dict[str, Linear]:
        return {name: kind(getattr(layer, name)) for name in ("qkv", "attention_output", "ffn_in", "ffn_out")}

    def _norm(self, norm: Norm) -> Norm:
        return Norm(norm.weight.to(self.stream), norm.bias.to(self.stream), norm.epsilon)

    def _normed(self, values: Tensor, norm: Norm) -> Tensor:
        own = self.norms[id(norm)]
        return F.layer_norm(values, values.shape[-1:], own.weight, own.bias, own.epsilon)


def groups_of_equal_length(runs: Ragged) -> Iterator[tuple[int, int, int]]:
    """Neighbouring runs of one length: (first row, number of runs, length)."""
    start, count, length = 0, 0, 0
    for size in runs.lengths.tolist():
        if size != length and count:
            yield start, count, length
            start, count = start + count * length, 0
        length, count = size, count + 1
    yield start, count, length
