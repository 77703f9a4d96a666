"""Hitting a FLOPs target: one multiplier, found by search; that of thresholds is then held by a controller."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from thresher.core.cost import EncoderShape, lowest_flops, relative_flops
from thresher.errors import ConfigError
from thresher.models.attach import encoder_shape, gates_of
from thresher.models.predict import Batch, predict

SEARCH_STEPS = 10
TOLERANCE = 0.002
SLACK = 0.01  # what costs this much more than the target still meets it
TYPICAL_SLOPE = -0.4  # of relative FLOPs against the multiplier's logarithm, only to choose the second measurement


def measured_flops(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Relative FLOPs of hard pruning on these batches, on true lengths."""
    found = predict(model, batches, pruned=True)
    assert found.kept is not None  # pruned=True records them
    return float(relative_flops(encoder_shape(model), found.lengths, found.kept))


def check_reachable(
    shape: EncoderShape,
    lengths: Tensor,
    thresholds: Sequence[float],
    target: float,
    *,
    protected: Tensor | int = 1,
    rejoin: int = 0,
    way_out: str = "let every layer prune with [prune] ramp = 'plain' in a --config file",
) -> None:
    """Refuse, before any training, a target that no scaling of these thresholds reaches."""
    lowest = lowest_flops(shape, lengths, thresholds, protected=protected, rejoin=rejoin)
    if target < lowest:
        hint = "" if thresholds[0] > 0 else f", or {way_out}"
        hint += f", or set rejoin = {rejoin - 1}, so that fewer layers have all tokens" if rejoin else ""
        left = "one token" if int(torch.as_tensor(protected).max()) == 1 else "the protected tokens"
        raise ConfigError(
            f"target_flops = {target} cannot be reached: even dropping all but {left} in every pruning layer leaves "
            f"{lowest:.3f}; ask for more{hint}"
        )


class Scaler(Protocol):
    """What one number adjusts: the larger the factor, the less is kept."""

    def apply(self, factor: float) -> None: ...


def scale_to_target(
    gates: Scaler, measure: Callable[[], float], target: float, on_step: Callable[[float], None]
) -> float:
    """Find the multiplier at which the measured FLOPs meet the target; returns what was reached.

    Secant steps in log space inside a shrinking bracket, because every measurement is a pass over the sample. Where the
    cost has steps, the search may jump past the nearest one, so the nearest that was seen is what stays.
    """
    low, high = math.log(1 / 64), math.log(64)
    at, slope = 0.0, TYPICAL_SLOPE
    before: tuple[float, float] | None = None
    nearest: tuple[float, float, float] | None = None  # distance, multiplier, cost
    for _ in range(SEARCH_STEPS):
        gates.apply(math.exp(at))
        reached = measure()
        on_step(reached)
        distance = round(abs(reached - target), 6)
        if nearest is None or distance <= nearest[0]:  # of equals the later: the bracket has shrunk around it
            nearest = (distance, math.exp(at), reached)
        if abs(reached - target) < TOLERANCE:
            break
        low, high = (at, high) if reached > target else (low, at)
        if before is not None:
            slope = min(-0.05, (reached - before[1]) / (at - before[0]))
        before = (at, reached)
        step = at + (target - reached) / slope
        at = step if low < step < high else (low + high) / 2
    assert nearest is not None  # there is at least one step
    gates.apply(nearest[1])
    return nearest[2]


class GateScaler:
    """Multiplies a model's thresholds by one number; infinite thresholds stay infinite."""

    def __init__(self, model: nn.Module, floor: Tensor) -> None:
        """`floor` (layers,): thresholds that learning pushed below it start from it, so that scaling reaches them."""
        self._parameter = gates_of(model).thresholds
        with torch.no_grad():
            self._parameter.copy_(torch.maximum(self._parameter, floor.to(self._parameter)))
        self._unit = self._parameter.detach().clone()

    def apply(self, factor: float) -> None:
        with torch.no_grad():
            self._parameter.copy_(self._unit * factor)


def resting_from(steps: int) -> int:
    """The step from which on thresholds stay as they are, so that the weights settle: a tenth before the end."""
    return math.floor(0.9 * steps)


def nudge(model: nn.Module, *, measured: float, target: float, gain: float = 0.1) -> None:
    """The controller: after a step, move all thresholds towards the target: log g += gain * (measured - target)."""
    with torch.no_grad():
        gates_of(model).thresholds.mul_(math.exp(gain * (measured - target)))
