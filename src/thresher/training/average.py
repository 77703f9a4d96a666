"""The mean of a model's weights over the last steps of a stage, which takes their place while they are judged."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from thresher.models.attach import gates_of

COUNT = "count"  # no weight has this name


class Average:
    """Of the weights that are trained, after each step from `first_step` on. Thresholds are none of them: at the mean
    they are found anew."""

    def __init__(self, model: nn.Module, *, first_step: int) -> None:
        gates = {id(parameter) for parameter in gates_of(model).parameters()}
        self._weights = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in gates
        }
        self._means = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        self._model, self._first_step = model, first_step
        self.count = 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Count in the weights as `step`, from 0, has left them."""
        if step >= self._first_step:
            self.count += 1
            torch._foreach_lerp_(list(self._means.values()), list(self._weights.values()), 1 / self.count)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """For a while, the model has the mean weights; afterwards its own again, and its own gates. Recorded steps read
        weights where they lie, so that values are copied."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        gates = gates_of(self._model)
        decisions = {name: value.detach().clone() for name, value in gates.state_dict().items()}
        self._put(self._means)
        try:
            yield
        finally:
            self._put(own)
            gates.load_state_dict(decisions)

    def state(self) -> dict[str, Tensor]:
        return {COUNT: torch.tensor(self.count), **self._means}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.count = int(state[COUNT])
        for name, mean in self._means.items():
            mean.copy_(state[name])

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])
