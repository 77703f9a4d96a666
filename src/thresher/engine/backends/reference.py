"""The readable truth: plain torch, one sequence at a time, in any floating dtype."""

import torch
from torch import Tensor

from thresher.core.layer import attention_input, finish
from thresher.core.places import in_window, logits_of, placed
from thresher.core.plan import PruningPlan
from thresher.core.scores import at_least_float32, counted_queries
from thresher.engine.inputs import Tables
from thresher.engine.plain import convolved, embedded, joined, linear, normed, steps_of
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Affine, Weights, converted

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class Reference:
    """Every other backend is compared with this one."""

    name = "reference"
    longest_first = False
    core_each = False
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
        return embedded(self.weights, input_ids.values, self.weights.position_rows(input_ids), token_types)

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        contexts, scores = [], []
        for run, positions in self._runs(hidden, runs):
            query, key, value = self._by_head(index, run)
            probabilities = self._probabilities(index, query, key, positions, positions)
            contexts.append(self._joined(probabilities, value))
            scores.append(self._relative(probabilities, value, positions))
        return torch.cat(contexts), torch.cat(scores) if scored else None

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        contexts = []
        for run, positions in self._runs(hidden, runs):
            query, key, value = self._by_head(index, run)
            probabilities = self._probabilities(index, query[:, :1], key, positions[:1], positions)
            contexts.append(self._joined(probabilities, value))
        return torch.cat(contexts)

    def attend_alone(self, index: int, hidden: Tensor) -> Tensor:
        return self._qkv(index, hidden).chunk(3, dim=-1)[2]

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        layer = self.weights.layers[index]
        return finish(layer.spec, steps_of(layer, self.linear), context, hidden)

    def convolve(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor | None:
        return convolved(self.weights.layers[index].convolution, hidden, runs)

    def join(self, index: int, hidden: Tensor, beside: Tensor) -> Tensor:
        return joined(self.weights.layers[index].convolution, hidden, beside)

    def final(self, states: Tensor) -> Tensor:
        return normed(states, self.weights.final_norm)

    def head(self, states: Tensor) -> Tensor:
        return self.weights.head(states)

    def linear(self, values: Tensor, affine: Affine) -> Tensor:
        return linear(values, affine)

    def _runs(self, hidden: Tensor, runs: Ragged) -> list[tuple[Tensor, Tensor]]:
        """Hidden states (n, width) and positions (n,) of each run."""
        sizes = runs.lengths.tolist()
        return list(zip(torch.split(hidden, sizes), torch.split(runs.positions, sizes), strict=True))

    def _qkv(self, index: int, hidden: Tensor) -> Tensor:
        """(rows, 3 x width)."""
        layer = self.weights.layers[index]
        return self.linear(attention_input(layer.spec, steps_of(layer), hidden), layer.qkv)

    def _by_head(self, index: int, run: Tensor) -> list[Tensor]:
        """Query, key and value of one run: (heads, n, head width) each."""
        heads, parts = self.weights.layers[index].spec.heads, self._qkv(index, run).chunk(3, dim=-1)
        return [part.view(len(run), heads, -1).transpose(0, 1) for part in parts]

    def _probabilities(self, index: int, query: Tensor, key: Tensor, at: Tensor, of: Tensor) -> Tensor:
        """(heads, queries, keys), at least float32; at, of: original positions of queries and keys."""
        layer = self.weights.layers[index]
        spec = layer.spec
        query, key = placed(spec, query, key, at, of)
        logits = logits_of(spec, query, key, at, of, distance_bias=self.distance_bias, relative=layer.relative)
        inside = in_window(spec, at, of)
        return torch.softmax(logits if inside is None else logits.masked_fill(~inside, float("-inf")), dim=-1)

    def _relative(self, probabilities: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        """(n,) scores of one run, 1 on average. probabilities: (heads, n, n), value: (heads, n, head width)."""
        counted = counted_queries(positions, self.plan.score_queries)
        # What those that count give stands for what all give.
        received = probabilities.sum(dim=1) if counted is None else len(counted) * probabilities[:, counted].mean(dim=1)
        if self.plan.score == "attention":
            return received.mean(dim=0)
        lengths: Tensor = at_least_float32(value).norm(dim=-1)
        moved = (received * lengths).sum(dim=0)
        return moved / moved.mean().clamp(min=torch.finfo(moved.dtype).tiny)  # all values may be zero

    def _joined(self, probabilities: Tensor, value: Tensor) -> Tensor:
        """(heads, queries, keys) x (heads, keys, head width) -> (queries, width)."""
        context = probabilities.to(value.dtype) @ value
        return context.transpose(0, 1).reshape(context.shape[1], -1)
