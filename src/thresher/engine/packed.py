"""The packed layer loop: every layer works on the tokens that the layers before it kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.cost import EncoderShape
from thresher.core.gates import threshold_leaving
from thresher.engine.backends.base import Backend
from thresher.engine.inputs import Tables, alone_in, description, protected_rows, scaled
from thresher.engine.ragged import Ragged, idle_rows
from thresher.engine.weights import Weights
from thresher.errors import ModelError


@dataclass(frozen=True)
class Output:
    """In the order of the input. logits: (batch, outputs); kept: (batch, layers) tokens each layer passed on.

    From some layer on, the last at the latest, only the first token is passed on, the one the head reads.
    """

    logits: Tensor
    kept: Tensor


class PackedClassifier:
    """One classifier on packed batches, pruned or dense (a dense model is one whose thresholds are all zero)."""

    def __init__(
        self,
        weights: Weights,
        backend: Backend,
        *,
        thresholds: Sequence[float],
        config: PruneConfig,
        dial: float = 1.0,
    ) -> None:
        self.thresholds = scaled(thresholds, config, dial)
        self.backend, self.config, self.dial = backend, config, dial
        self.shape: EncoderShape = weights.shape
        self.tables = Tables.of(weights)
        self.alone = alone_in(self.thresholds, config)
        backend.prepare(weights, score=config.score, alone=self.alone)

    def describe(self) -> dict[str, Any]:
        """What is computed, and how."""
        return description(self)

    def logits(
        self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int] | None] | None = None
    ) -> Output:
        """Classify token sequences of any lengths, in one packed batch. Missing token types are zeros."""
        return self._classify(input_ids, token_types, shares=None)

    def fit(
        self,
        shares: Sequence[float],
        input_ids: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int] | None] | None = None,
    ) -> list[float]:
        """Set the thresholds, layer by layer, to those that leave these shares of the batch's unprotected tokens."""
        if self.alone != self.shape.layers - 1:
            raise ModelError("thresholds are fitted from the dense model: start with none that is infinite")
        self.thresholds = [math.inf] * self.shape.layers  # the last layer's has nothing to leave
        self._classify(input_ids, token_types, shares=shares)
        return self.thresholds

    @torch.inference_mode()
    def _classify(
        self,
        input_ids: Sequence[Sequence[int]],
        token_types: Sequence[Sequence[int] | None] | None,
        *,
        shares: Sequence[float] | None,
    ) -> Output:
        order = sorted(range(len(input_ids)), key=lambda i: -len(input_ids[i]))
        if not order or min(len(ids) for ids in input_ids) == 0:
            raise ModelError("every sequence needs at least one token, and a batch at least one sequence")
        packed = Ragged.pack([torch.tensor(input_ids[i]) for i in order])
        types = None
        if token_types is not None and any(kinds is not None for kinds in token_types):
            types = torch.cat([torch.tensor(token_types[i] or [0] * len(input_ids[i])) for i in order])
        self.tables.check(len(input_ids[order[0]]), packed.values, types)
        runs = replace(packed, sequences=torch.tensor(order)).to(self.backend.device)
        types = None if types is None else types.to(self.backend.device)
        hidden, runs, kept = self._layers(self.backend.embed(runs, types), runs, shares)
        result = self.backend.head(hidden)
        logits = torch.empty_like(result)
        logits[runs.sequences] = result
        return Output(logits=logits.cpu(), kept=kept.cpu())

    def _layers(self, hidden: Tensor, runs: Ragged, shares: Sequence[float] | None) -> tuple[Tensor, Ragged, Tensor]:
        """All layers: the first tokens' last states (batch, width), their runs, and kept counts in input order."""
        protected = protected_rows(runs, self.config)
        unprotected = 0 if shares is None else int((~protected).sum())
        # Idle rows after the live ones: products then have few different shapes.
        hidden = F.pad(hidden, (0, 0, 0, idle_rows(len(hidden), self.backend.row_step)))
        kept = torch.ones(len(runs.sequences), self.shape.layers, dtype=torch.long, device=self.backend.device)
        for index in range(self.alone):
            scored = shares is not None or self.thresholds[index] > 0
            context, scores = self.backend.attend(index, hidden, runs, scored=scored)
            if scores is not None:
                scores = self._in_scale(scores, runs)
                if shares is not None:
                    found = threshold_leaving(shares[index], scores[~protected], of=unprotected)
                    self.thresholds[index] = max(0.0, found)
                keep = (scores > self.thresholds[index]) | protected
                if not bool(keep.all()):
                    runs, rows = runs.compact(keep, longest_first=self.backend.longest_first)
                    protected, rows = protected[rows], self._whole_steps(rows)
                    context, hidden = context.index_select(0, rows), hidden.index_select(0, rows)
            kept[runs.sequences, index] = runs.lengths
            hidden = self.backend.finish(index, context, hidden)
        return self._of_first_tokens(hidden, runs), runs, kept

    def _of_first_tokens(self, hidden: Tensor, runs: Ragged) -> Tensor:
        """The layers that pass on first tokens only: (batch, width)."""
        first = self._whole_steps(runs.first)
        context = self.backend.attend_first(self.alone, hidden, runs)
        context = F.pad(context, (0, 0, 0, len(first) - len(context)))
        hidden = self.backend.finish(self.alone, context, hidden.index_select(0, first))
        for index in range(self.alone + 1, self.shape.layers):
            hidden = self.backend.finish(index, self.backend.attend_alone(index, hidden), hidden)
        return hidden[: len(runs.first)]

    def _whole_steps(self, rows: Tensor) -> Tensor:
        """The rows to gather, and the first row again for the idle ones."""
        return F.pad(rows, (0, idle_rows(len(rows), self.backend.row_step)))

    def _in_scale(self, scores: Tensor, runs: Ragged) -> Tensor:
        if self.config.scale == "relative":
            return scores
        return scores / torch.repeat_interleave(runs.lengths, runs.lengths)
