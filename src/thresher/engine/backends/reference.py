"""The readable truth: plain torch, one sequence at a time, in any floating dtype."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.core.scores import at_least_float32
from thresher.engine.inputs import Tables
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, Layer, Norm, Weights, converted

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class Reference:
    """Every other backend is compared with this one."""

    name = "reference"
    longest_first = False
    row_step = 1

    def __init__(
        self, weights: Weights, plan: PruningPlan, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> None:
        self.plan, self.shape, self.tables, self.device = plan, weights.shape, Tables.of(weights), device
        self.dtype = next(name for name, known in DTYPES.items() if known == dtype)
        self.weights = converted(weights, dtype=dtype, device=device)
        # Scores decide what is dropped: their bias stays exact.
        bias = weights.distance_bias
        self.distance_bias = None if bias is None else bias.to(device)

    def embed(self, input_ids: Ragged, token_types: Tensor | None) -> Tensor:
        weights = self.weights
        ids = input_ids.values
        total = weights.word[ids] + weights.position[weights.position_rows(input_ids)]
        if weights.token_type is not None:
            types = torch.zeros_like(ids) if token_types is None else token_types
            total = total + weights.token_type[types]
        hidden = self.norm(total, weights.embedding_norm)
        return hidden if weights.projection is None else self.linear(hidden, weights.projection)

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        contexts, scores = [], []
        for run, positions in self._runs(hidden, runs):
            query, key, value = self._by_head(self.weights.layers[index], run)
            probabilities = torch.softmax(self._logits(query, key, positions, positions), dim=-1)
            contexts.append(self._joined(probabilities, value))
            scores.append(self._relative(probabilities, value))
        return torch.cat(contexts), torch.cat(scores) if scored else None

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        contexts = []
        for run, positions in self._runs(hidden, runs):
            query, key, value = self._by_head(self.weights.layers[index], run)
            probabilities = torch.softmax(self._logits(query[:, :1], key, positions[:1], positions), dim=-1)
            contexts.append(self._joined(probabilities, value))
        return torch.cat(contexts)

    def attend_alone(self, index: int, hidden: Tensor) -> Tensor:
        return self.linear(hidden, self.weights.layers[index].qkv).chunk(3, dim=-1)[2]

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        layer = self.weights.layers[index]
        attended = self.norm(self.linear(context, layer.attention_output) + hidden, layer.attention_norm)
        inner = layer.activation(self.linear(attended, layer.ffn_in))
        return self.norm(self.linear(inner, layer.ffn_out) + attended, layer.output_norm)

    def head(self, states: Tensor) -> Tensor:
        return self.weights.head(states)

    def linear(self, values: Tensor, affine: Affine) -> Tensor:
        return F.linear(values, affine.weight, affine.bias)

    def norm(self, values: Tensor, norm: Norm) -> Tensor:
        return F.layer_norm(values, values.shape[-1:], norm.weight, norm.bias, norm.epsilon)

    def _runs(self, hidden: Tensor, runs: Ragged) -> list[tuple[Tensor, Tensor]]:
        """Hidden states (n, width) and positions (n,) of each run."""
        sizes = runs.lengths.tolist()
        return list(zip(torch.split(hidden, sizes), torch.split(runs.positions, sizes), strict=True))

    def _by_head(self, layer: Layer, run: Tensor) -> list[Tensor]:
        """Query, key and value of one run: (heads, n, head width) each."""
        parts = self.linear(run, layer.qkv).chunk(3, dim=-1)
        return [part.view(len(run), layer.heads, -1).transpose(0, 1) for part in parts]

    def _logits(self, query: Tensor, key: Tensor, at: Tensor, of: Tensor) -> Tensor:
        """(heads, queries, keys), at least float32; at, of: original positions of queries and keys."""
        logits = at_least_float32(query) @ at_least_float32(key).transpose(1, 2) / math.sqrt(query.shape[-1])
        if self.distance_bias is not None:
            table = self.distance_bias.to(logits)
            distance = of[None, :] - at[:, None] + len(table) // 2
            logits = logits + table[distance].permute(2, 0, 1)
        return logits

    def _relative(self, probabilities: Tensor, value: Tensor) -> Tensor:
        """(n,) scores of one run, 1 on average. probabilities: (heads, n, n), value: (heads, n, head width)."""
        received = probabilities.sum(dim=1)  # (heads, n)
        if self.plan.score == "attention":
            return received.mean(dim=0)
        lengths: Tensor = at_least_float32(value).norm(dim=-1)
        moved = (received * lengths).sum(dim=0)
        return moved / moved.mean().clamp(min=torch.finfo(moved.dtype).tiny)  # all values may be zero

    def _joined(self, probabilities: Tensor, value: Tensor) -> Tensor:
        """(heads, queries, keys) x (heads, keys, head width) -> (queries, width)."""
        context = probabilities.to(value.dtype) @ value
        return context.transpose(0, 1).reshape(context.shape[1], -1)
