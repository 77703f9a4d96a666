"""The dense model that a pruned one learns from: its weights, and what it says of rows."""

import copy
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from thresher.models.attach import unprune_, weights_without_gates
from thresher.models.predict import Batch, OnBatch
from thresher.training.judge import Judge


class Teacher:
    """It shares the model under training, which has its weights for as long as it is asked. `weights`, on the CPU and
    without gates, are empty until they are `fix`ed or were known before."""

    def __init__(self, model: Any, judge: Judge, weights: dict[str, Tensor]) -> None:
        self._model, self._judge, self.weights = model, judge, weights

    def fix(self) -> None:
        """The model as it is now."""
        dense = weights_without_gates(self._model)
        self.weights = {name: value.detach().cpu().clone() for name, value in dense.items()}

    def predict(self, batches: list[Batch], *, on_batch: OnBatch | None = None) -> Tensor:
        """(rows, outputs) logits."""
        return self._judge.predict_with(self.weights, batches, on_batch=on_batch)

    @cached_property
    def on_selection(self) -> Tensor:
        return self.predict(self._judge.batches)

    def model(self) -> nn.Module:
        """A model of its own, which nothing trains, beside the one under training."""
        own: nn.Module = copy.deepcopy(self._model)
        unprune_(own)
        own.load_state_dict(self.weights)
        return own.to(next(self._model.parameters()).device).eval().requires_grad_(False)
