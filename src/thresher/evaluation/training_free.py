"""Thresholds for a dense model without training or labels: fitted on some texts, judged on others.

The dense model's own predictions are the goal. First one multiplier is found on each of a few ramps, which begin at
different layers; then, from the best of them, each layer's threshold is moved up and down while all others give way so
that the cost stays; and last the multiplier is found again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from thresher.core.cost import EncoderShape, engine_relative_flops, relative_flops
from thresher.engine.packed import PackedClassifier
from thresher.engine.quantize import Logits, Text, agreement
from thresher.errors import ConfigError
from thresher.evaluation.agreement import Agreement, assured, change, measure_agreement

BATCH_TOKENS = 4096
QUIET = (0, 1 / 4, 1 / 2, 2 / 3)  # shares of the layers before the ramps begin
START = 0.5  # threshold at the end of the first ramp
FIRST_STEP, BISECTIONS = 1.25, 4  # of the multiplier: together they place it within 3%
SMALLEST, LARGEST = 1 / 64, 64.0  # multipliers beyond these change nothing any more
MOVES = (1.6, 1.25)  # factors on one layer's threshold, one sweep over the layers each
NEAR = 0.02  # relative FLOPs: how close to a given cost counts as meeting it
WAKE = 0.1  # where a layer that does not prune yet starts to
TYPICAL_SLOPE = -0.3  # of relative FLOPs against the multiplier's logarithm, only to choose the second measurement


@dataclass(frozen=True)
class Goal:
    """Agreement to keep, or relative FLOPs to reach; exactly one of them."""

    agreement: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        if (self.agreement is None) == (self.flops is None):
            raise ConfigError(f"agreement = {self.agreement} and target_flops = {self.flops}: give exactly one of them")
        if self.agreement is not None and not 0.5 < self.agreement <= 1:
            raise ConfigError(f"agreement = {self.agreement:g} must be above 50% and at most 100%; write 99% or 0.99")
        if self.flops is not None and not 0 < self.flops <= 1:
            raise ConfigError(f"target_flops = {self.flops:g} must be above 0 and at most 1; 0.8 is a fifth saved")

    def allows(self, trial: "Trial") -> bool:
        """Whether pruning may go this far. A standard error stays in hand, because the best of many trials is lucky."""
        if self.flops is not None:
            return trial.relative_flops >= self.flops
        # No number of texts assures 100%.
        return trial.assured >= (self.agreement or 0) or trial.agreement == self.agreement == 1


@dataclass(frozen=True)
class Trial:
    """What thresholds do to a sample. See there for `assured` and `change`."""

    thresholds: tuple[float, ...]
    relative_flops: float
    agreement: float
    assured: float
    change: float


@dataclass(frozen=True)
class Judged:
    """Thresholds on texts that had no part in finding them."""

    agreement: Agreement
    relative_flops: float
    engine_relative_flops: float
    kept_per_layer: list[float]
    mean_length: float


class Sample:
    """Texts with the dense model's predictions, to try thresholds on. `packed` gets its thresholds from here."""

    def __init__(self, packed: PackedClassifier, texts: Sequence[Text], on_trial: Callable[[], None]) -> None:
        self._packed, self._texts, self._on_trial = packed, texts, on_trial
        self._known: dict[tuple[float, ...], Trial] = {}
        self.shape: EncoderShape = packed.shape
        self.lengths = torch.tensor([len(ids) for ids, _ in texts])
        self._batches = _batches([len(ids) for ids, _ in texts])
        self.dense, _ = self._run([0.0] * packed.shape.layers)

    def at(self, thresholds: Sequence[float]) -> Trial:
        key = tuple(thresholds)
        if key not in self._known:
            logits, kept = self._run(key)
            value = agreement(logits, self.dense)
            regression = self.dense.shape[1] == 1
            self._known[key] = Trial(
                thresholds=key,
                relative_flops=float(relative_flops(self.shape, self.lengths, kept)),
                agreement=value,
                assured=assured(value, texts=len(self._texts), regression=regression),
                change=change(logits, self.dense),
            )
            self._on_trial()
        return self._known[key]

    def judge(self, thresholds: Sequence[float]) -> Judged:
        logits, kept = self._run(thresholds)
        return Judged(
            agreement=measure_agreement(logits, self.dense),
            relative_flops=float(relative_flops(self.shape, self.lengths, kept)),
            engine_relative_flops=engine_relative_flops(self.shape, self.lengths, kept),
            kept_per_layer=kept.double().mean(dim=0).tolist(),
            mean_length=float(self.lengths.double().mean()),
        )

    def _run(self, thresholds: Sequence[float]) -> tuple[Logits, torch.Tensor]:
        self._packed.thresholds = list(thresholds)
        logits: list[torch.Tensor] = []
        kept: list[torch.Tensor] = []
        for batch in self._batches:
            output = self._packed.logits([self._texts[i][0] for i in batch], [self._texts[i][1] for i in batch])
            logits.append(output.logits)
            kept.append(output.kept)
        place = torch.tensor([i for batch in self._batches for i in batch]).argsort()
        found: Logits = torch.cat(logits)[place].numpy().astype(np.float32)
        return found, torch.cat(kept)[place]


def ramp(layers: int, quiet: int) -> list[float]:
    """Thresholds rising linearly after `quiet` layers that do not prune.

    The last layer keeps the first token only, which a head that reads the first token cannot notice.
    """
    return [START * max(0, layer - quiet) / (layers - quiet) for layer in range(1, layers)] + [math.inf]


def start(layers: int) -> list[float]:
    """The ramp that training starts from, too: the first quarter of the layers is quiet."""
    return ramp(layers, layers // 4)


def check_reachable(shape: EncoderShape, lengths: Sequence[int], goal: Goal) -> None:
    """Refuse a cost that the ramp cannot reach, before anything is measured."""
    if goal.flops is None:
        return
    tokens = torch.tensor(lengths)
    quiet = sum(value == 0 for value in start(shape.layers))
    kept = torch.ones(len(tokens), shape.layers, dtype=torch.long)
    kept[:, :quiet] = tokens[:, None]
    lowest = float(relative_flops(shape, tokens, kept))
    if goal.flops <= lowest:
        raise ConfigError(
            f"target_flops = {goal.flops:g} cannot be reached: one token in every pruning layer leaves {lowest:.3f}; "
            "ask for more; without training, agreement is lost long before"
        )


def fit(sample: Sample, goal: Goal) -> tuple[Trial, Trial]:
    """The fitted thresholds and, to see what fitting brings, the usual ramp with its one multiplier.

    Agreement moves in whole texts, and the best of many trials by it is a lucky one. So it decides only once, how far
    the usual ramp may go; all others go as far as they change the predictions no more than that.
    """
    layers = sample.shape.layers
    one = dial(sample, start(layers), goal.allows)
    limit = goal.allows

    def as_good(trial: Trial) -> bool:
        return trial.change <= one.change and trial.agreement >= min(one.agreement, goal.agreement or 0)

    if goal.flops is None and one.change > 0:
        limit = as_good
    others = sorted({int(share * layers) for share in QUIET} - {layers // 4})
    ramps = [one, *(dial(sample, ramp(layers, quiet), limit) for quiet in others)]
    best = fitted = _best(ramps, goal)
    for move in MOVES:
        fitted = refine(sample, fitted, move)
    return _best([best, dial(sample, fitted.thresholds, limit)], goal), one


def _best(trials: Sequence[Trial], goal: Goal) -> Trial:
    """The cheapest; where the cost is given, the one that changes least (a ramp that begins late may not reach it)."""
    if goal.flops is None:
        return min(trials, key=lambda trial: trial.relative_flops)
    lowest = min(trial.relative_flops for trial in trials)
    near = [trial for trial in trials if trial.relative_flops < max(goal.flops, lowest) + NEAR]
    return min(near, key=lambda trial: trial.change)


def dial(sample: Sample, thresholds: Sequence[float], allows: Callable[[Trial], bool]) -> Trial:
    """The largest multiple of these thresholds that is allowed; without one, nothing but the last layer prunes."""
    trial = sample.at(thresholds)
    upwards = allows(trial)
    known, step = 1.0, FIRST_STEP
    best = trial if upwards else None
    low = high = 1.0
    while SMALLEST < known < LARGEST:  # walk until the answer changes: it lies between the last two
        low = high = known
        known = known * step if upwards else known / step
        step *= step
        trial = sample.at(_scaled(thresholds, known))
        best = trial if allows(trial) else best
        if allows(trial) != upwards:
            low, high = sorted((low, known))
            break
    if best is None:
        return sample.at(_scaled(thresholds, 0.0))
    for _ in range(BISECTIONS if low < high else 0):
        middle = math.sqrt(low * high)
        trial = sample.at(_scaled(thresholds, middle))
        low, high, best = (middle, high, trial) if allows(trial) else (low, middle, best)
    return best


def refine(sample: Sample, trial: Trial, move: float) -> Trial:
    """One sweep over the layers, from the last that can prune: each threshold up or down, at the same total cost."""
    for layer in reversed(range(sample.shape.layers - 1)):
        for factor in (move, 1 / move):
            moved = list(trial.thresholds)
            if moved[layer] == 0 and factor < 1:
                continue
            moved[layer] = moved[layer] * factor or WAKE
            other = at_cost(sample, moved, trial.relative_flops)
            if other.change < trial.change:
                trial = other
                break
    return trial


def at_cost(sample: Sample, thresholds: Sequence[float], flops: float) -> Trial:
    """These thresholds with the multiplier that gives this cost: two measurements, the second one aimed at it.

    What is left of the distance is bridged by a straight line between the two, in the logarithm of the change.
    """
    first = sample.at(thresholds)
    factor = math.exp((flops - first.relative_flops) / TYPICAL_SLOPE)
    second = sample.at(_scaled(thresholds, factor))
    distance = second.relative_flops - first.relative_flops
    share = (flops - second.relative_flops) / distance if distance else 0.0
    if not -1 < share < 1:  # far off: the line says nothing there
        return second
    growth = math.log(max(second.change, 1e-9) / max(first.change, 1e-9))
    return Trial(
        thresholds=tuple(_scaled(second.thresholds, factor**share)),
        relative_flops=flops,
        agreement=second.agreement,
        assured=second.assured,
        change=second.change * math.exp(growth * share),
    )


def _scaled(thresholds: Sequence[float], factor: float) -> list[float]:
    """All but infinite thresholds times a factor."""
    return [value * factor if math.isfinite(value) else value for value in thresholds]


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of similar lengths, at most so many tokens together."""
    found: list[list[int]] = []
    used = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not found or used + lengths[row] > BATCH_TOKENS:
            found.append([])
            used = 0
        found[-1].append(row)
        used += lengths[row]
    return found
