"""Thresholds for a dense model without training or labels: fitted on some texts, judged on others.

The dense model's own predictions are the goal. Shares of tokens fall linearly through the layers, and thresholds leave
these shares. For a few widths of the fall, its place is searched that goes as far as the goal allows; the best stays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from thresher.core.cost import EncoderShape, engine_relative_flops, lowest_flops, relative_flops
from thresher.core.gates import falling_shares
from thresher.engine.find_scales import Text
from thresher.engine.inputs import protected_rows
from thresher.engine.packed import PackedExecutor, PackedTexts
from thresher.errors import ConfigError
from thresher.evaluation.agreement import (
    Agreement,
    Logits,
    agreement,
    assured_of,
    change,
    counts_decisions,
    meaning_of,
    measure_agreement,
)
from thresher.evaluation.of_tokens import in_order, to_compare
from thresher.tasks.batches import sorted_batches

BATCH_TOKENS = 4096
SHARE_TOKENS = 16384  # thresholds that leave given shares are found on so many
WIDTHS = (6.0, 12.0, 24.0)  # layers of a 12-layer model over which the shares fall; scaled to others
HALVINGS = 7  # they place the fall within about 1% of the cost
MANY = 0.93  # agreement at which enough decisions change to learn how they follow from the change of predictions
NEAR = 0.02  # relative FLOPs: costs that count as the same


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
    """Texts with the dense model's predictions, to try thresholds on. `means`: what these are, see `meaning_of`."""

    def __init__(
        self,
        executor: PackedExecutor,
        texts: Sequence[Text],
        on_trial: Callable[[], None],
        *,
        means: str | None = None,
    ) -> None:
        self._executor, self._texts, self._on_trial = executor, texts, on_trial
        self._known: dict[tuple[float, ...], Trial] = {}
        self._holding: dict[tuple[float, ...], list[float]] = {}
        self.shape: EncoderShape = executor.shape
        self.lengths = torch.tensor([len(ids) for ids, _ in texts])
        self._batches = sorted_batches([len(ids) for ids, _ in texts], max_tokens=BATCH_TOKENS)
        self._packed = [self._pack([texts[i] for i in batch]) for batch in self._batches]
        self.collapses: bool = not executor.plan.restores  # nobody reads more than first tokens
        self.rejoin = executor.plan.rejoin
        self.protected = self._ordered([self._protected(packed) for packed in self._packed])
        self._given = means
        self.dense, _ = self._run([0.0] * executor.shape.layers)
        self.means: str = meaning_of(self.dense, means)

    def at(self, thresholds: Sequence[float]) -> Trial:
        key = tuple(thresholds)
        if key not in self._known:
            logits, kept = self._run(key)
            self._known[key] = Trial(
                thresholds=key,
                relative_flops=float(relative_flops(self.shape, self.lengths, kept)),
                agreement=agreement(logits, self.dense, self.means),
                assured=assured_of(logits, self.dense, self.means),
                change=change(logits, self.dense, self.means),
            )
            self._on_trial()
        return self._known[key]

    def holding(self, shares: Sequence[float]) -> list[float]:
        """Thresholds that leave each layer this share of the tokens, of texts picked evenly if there are too many."""
        key = tuple(shares)
        if key not in self._holding:
            some = self._texts[:: math.ceil(int(self.lengths.sum()) / SHARE_TOKENS)]
            self._holding[key] = self._executor.fit(key, self._pack(some))
        return self._holding[key]

    def judge(self, thresholds: Sequence[float]) -> Judged:
        logits, kept = self._run(thresholds)
        return Judged(
            agreement=measure_agreement(logits, self.dense, self.means),
            relative_flops=float(relative_flops(self.shape, self.lengths, kept)),
            engine_relative_flops=engine_relative_flops(
                self.shape, self.lengths, kept, alone=self._executor.plan.with_thresholds(thresholds).alone
            ),
            kept_per_layer=kept.double().mean(dim=0).tolist(),
            mean_length=float(self.lengths.double().mean()),
        )

    def _pack(self, texts: Sequence[Text]) -> PackedTexts:
        return self._executor.pack([ids for ids, _ in texts], [kinds for _, kinds in texts])

    def _run(self, thresholds: Sequence[float]) -> tuple[Logits, torch.Tensor]:
        logits: list[Logits] = []
        kept: list[torch.Tensor] = []
        for packed in self._packed:
            output = self._executor.trial(packed, thresholds)
            logits.append(output.outputs.numpy().astype(np.float32))
            kept.append(output.kept)
        lengths, means = self.lengths.tolist(), self._given or ""
        order = [i for batch in self._batches for i in batch]
        found = to_compare(in_order(logits, order, lengths, means), lengths, means)
        counts = self._ordered(kept)
        if self.collapses and thresholds[-1] == math.inf:
            # The engine computes first tokens alone there; the model, which is what is counted, all that it protects.
            counts[:, -1] = self.protected
        return found, counts

    def _ordered(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """What was found batch by batch, in the order of the texts."""
        place = torch.tensor([i for batch in self._batches for i in batch]).argsort()
        return torch.cat(list(parts))[place]

    def _protected(self, packed: PackedTexts) -> torch.Tensor:
        """(texts,) how many tokens of each text no threshold may drop, in the order of the batch."""
        flags = protected_rows(packed.ids, self._executor.plan)
        counts = torch.stack([part.sum() for part in torch.split(flags, packed.ids.lengths.tolist())])
        found = torch.empty_like(counts)
        found[packed.ids.sequences] = counts
        return found.cpu()


def check_reachable(
    shape: EncoderShape, lengths: Sequence[int], goal: Goal, *, protected: torch.Tensor | int = 1, rejoin: int = 0
) -> None:
    """Refuse a cost that no thresholds can reach. protected: (texts,) tokens that stay in any case."""
    if goal.flops is None:
        return
    lowest = lowest_flops(shape, torch.tensor(lengths), [1.0] * shape.layers, protected=protected, rejoin=rejoin)
    if goal.flops <= lowest:
        left = "one token" if isinstance(protected, int) else "the protected tokens (a reranker's query) alone"
        raise ConfigError(
            f"target_flops = {goal.flops:g} cannot be reached: {left} after every layer leaves {lowest:.3f}; "
            "ask for more; without training, agreement is lost long before"
        )


def fit(sample: Sample, goal: Goal) -> Trial:
    """The cheapest thresholds that keep the agreement; where the cost is given, those that change predictions least."""
    if int(sample.protected.max()) > 1:
        check_reachable(sample.shape, sample.lengths.tolist(), goal, protected=sample.protected, rejoin=sample.rejoin)
    allows = limit(sample, goal)
    falls = [farthest(sample, fall(sample, width), allows) for width in WIDTHS]
    if goal.flops is None:
        return min(falls, key=lambda trial: trial.relative_flops)
    near = min(trial.relative_flops for trial in falls) + NEAR
    return min((trial for trial in falls if trial.relative_flops < near), key=lambda trial: trial.change)


def limit(sample: Sample, goal: Goal) -> Callable[[Trial], bool]:
    """What decides how far pruning may go: the cost, or how much predictions change.

    At 99% a handful of decisions changes, and the best of many trials by such a count is a lucky one. But decisions
    change in proportion to the predictions. So their ratio is taken from where many change, with a standard error in
    hand. A correlation or a cosine is no count and taken where it is asked for; a correlation is lost by the square of
    the change.
    """
    if goal.flops is not None:
        cost = goal.flops
        return lambda trial: trial.relative_flops >= cost
    wanted = goal.agreement or 0.0  # a goal has one of the two
    seen = min(MANY, wanted) if counts_decisions(sample.means) else wanted
    many = farthest(sample, fall(sample, WIDTHS[1]), lambda trial: trial.agreement >= seen)
    lost = max(1 - many.assured, 1e-9)
    most = many.change * ((1 - wanted) / lost) ** (0.5 if sample.means in ("value", "score") else 1)
    return lambda trial: trial.change <= most and trial.agreement >= wanted


def fall(sample: Sample, width: float) -> Callable[[float], list[float]]:
    """Thresholds along a way from 0 (every layer keeps all, but the last where nobody reads more than first tokens) to
    1 (none keeps any but protected tokens)."""
    layers, collapses = sample.shape.layers, sample.collapses
    wide = max(1.0, width * layers / 12)
    last = layers - 1 if collapses else layers  # the last layer that begins with all tokens
    return lambda way: sample.holding(
        falling_shares(
            (last + 0.5 + wide / 2) * (1 - way) + (0.5 - wide / 2) * way,
            wide,
            layers=layers,
            collapse_last=collapses,
            rejoin=sample.rejoin,
        )
    )


def farthest(sample: Sample, thresholds: Callable[[float], list[float]], allows: Callable[[Trial], bool]) -> Trial:
    """The farthest along a way from 0 to 1 that is allowed; without one, nothing prunes but a last layer of which
    first tokens alone are read."""
    best = sample.at([0.0] * (sample.shape.layers - 1) + [math.inf if sample.collapses else 0.0])
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        trial = sample.at(thresholds(middle))
        low, high, best = (middle, high, trial) if allows(trial) else (low, middle, best)
    return best
