"""Thresholds that keep a given share of the tokens in every layer, for the shape of shares that suits the task best.

Shares fall linearly through the layers, over a few of them or over many: at one cost there is a shape for every width,
from "everything at once" to "a little in every layer". They fall to protected tokens alone, or to a floor. Several
shapes share the first steps; the one whose predictions stay nearest to the dense model's gets the rest.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thresher.core.gates import hard_keep, limit_of
from thresher.errors import ConfigError
from thresher.models.gating import Trace
from thresher.models.rules import Rule
from thresher.training.budget import resting_from
from thresher.training.falling import FallingShares
from thresher.training.method import Method

WIDTHS = (1.0, 3.0, 5.0, 8.0)  # layers of 12 over which tokens fall
# An embedding is no single decision: where tokens fall to the first one alone, most of it is lost.
EMBEDDING_WIDTHS = (8.0, 24.0, 48.0)
TOKEN_WIDTHS = (1.0, 3.0)  # the question must have met its context before much of that goes
TOKEN_FLOORS = (0.0, 0.4)
GAIN = 0.1  # of a threshold's logarithm, for the error of its layer's share


class Race(Rule):
    """The shapes that are still in the race, with thresholds each; one of them decides at a time."""

    name = "race"
    shares: Tensor  # (shapes, layers)
    thresholds: Tensor  # (shapes, layers)
    racing: Tensor  # (shapes,)
    current: Tensor  # (layers,) thresholds of the deciding shape: a recorded step reads them here

    def __init__(self, shapes: int, layers: int, *, floor: float) -> None:
        """`floor` is what a threshold counts as that is lower, so that factors move it."""
        super().__init__()
        self.floor = floor
        for name in ("shares", "thresholds"):
            self.register_buffer(name, torch.zeros(shapes, layers))
        self.register_buffer("racing", torch.ones(shapes, dtype=torch.bool))
        self.register_buffer("current", torch.zeros(layers))

    def keep(self, layer: int, scores: Tensor, trace: Trace) -> Tensor:
        return hard_keep(scores, limit_of(self.current[layer]), alive=trace.alive[-1], protected=trace.protected)

    def drops_all(self, layers: int) -> Tensor:
        return self.current == math.inf

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "thresholds": self.thresholds.tolist()}

    def take(self, index: int) -> None:
        self.current.copy_(self.thresholds[index])

    def in_race(self) -> list[int]:
        return [int(index) for index in self.racing.nonzero().flatten()]

    def track(self, index: int, kept: Sequence[float]) -> None:
        """Move each layer's threshold towards its share. Infinite ones, and those of layers that drop nothing, stay."""
        shares = self.shares[index]
        error = torch.tensor(kept, device=shares.device, dtype=shares.dtype) - shares
        moved = self.thresholds[index].clamp(min=self.floor) * torch.exp(GAIN * error)
        self.thresholds[index] = torch.where((shares > 0) & (shares < 1), moved, self.thresholds[index])


class Thresher(Method):
    """The default: thresholds that follow a falling share of tokens, whose shape is chosen on the way."""

    name = "thresher"
    adjusts = "shares"

    def begin(self) -> None:
        layers, config = self.run.shape.layers, self.gates.config
        if "first" not in config.protect:
            raise ConfigError(
                "method = 'thresher' ends in layers that keep only protected tokens; add 'first' to protect"
            )
        tokens = self.run.means in ("span", "tags")
        own = TOKEN_WIDTHS if tokens else EMBEDDING_WIDTHS if self.run.means == "embedding" else WIDTHS
        floors = self.config.floors or (TOKEN_FLOORS if tokens else (0.0,))
        widths = dict.fromkeys(max(1.0, width * layers / 12) for width in self.config.widths or own)
        self._shapes = list(itertools.product(widths, floors))
        self.searches = len(self._shapes)
        mean_score = 1.0 if config.scale == "relative" else 1.0 / float(self.run.lengths.float().mean())
        self._begin_with(Race(len(self._shapes), layers, floor=0.01 * mean_score))

    @property
    def rule(self) -> Race:
        rule = self.gates.rule
        assert isinstance(rule, Race)  # set in begin
        return rule

    def meet(self, target: float) -> float:
        reached = [self._fit(index, target, shown=True) for index in self.rule.in_race()]
        self.rule.take(0)
        return reached[0]

    def after_hard_step(self, step: int, *, steps: int, flops: float | None, kept: list[float]) -> None:
        last = resting_from(steps)
        if step > last:
            return
        rule = self.rule
        race = rule.in_race()
        rule.track(race[step % len(race)], kept)
        end = self.config.race_end
        for share, left in ((end / 2, (len(race) + 1) // 2), (end, 1)):
            if step == int(share * steps) and len(race) > 1:
                race = self._best_of(race, left, step)
        if step == last and self.target is not None:
            # Until now thresholds followed what training keeps, under dropout; what counts is what others will keep.
            self._fit(race[0], self.target, shown=False)
        rule.take(race[(step + 1) % len(race)])

    def refit(self) -> None:
        assert self.target is not None  # a method without a soft stage needs one
        race = self.rule.in_race()
        for index in race:
            self._fit(index, self.target, shown=False)
        self.rule.take(race[0])

    def finish(self) -> float | None:
        race, score = self.rule.in_race(), None
        if len(race) > 1 and not self._rounds:  # no step was asked for
            self.rule.take(self._best_of(race, 1, 0)[0])
            score = self.run.evaluate()["score"]
        thresholds = self.rule.current.clone()
        self.gates.rule = None
        self.gates.set_thresholds(thresholds)
        return score

    def about(self) -> dict[str, Any]:
        rounds = [{"step": int(step), "divergence_by_width": found} for step, found in self._rounds.items()]
        return {"race": rounds} if rounds else {}

    @functools.cached_property
    def _rounds(self) -> dict[str, dict[str, float]]:
        """Of the race, divergence by width, by step: an interrupted run may come to one again."""
        return self.run.recall() or {}

    def _best_of(self, race: list[int], left: int, step: int) -> list[int]:
        found = {index: self._divergence_of(index) for index in race}
        ranked = sorted(found, key=lambda index: found[index])
        if left > 1 and self.config.narrow_later:
            narrowest = min(race, key=lambda index: self._shapes[index][0])
            ranked = [narrowest, *(index for index in ranked if index != narrowest)]
        kept = sorted(ranked[:left])
        self.rule.racing.copy_(torch.tensor([index in kept for index in range(len(self.rule.racing))]))
        by_width = {self._name(index): value for index, value in found.items()}
        self._rounds[str(step)] = by_width
        self.run.remember(self._rounds)
        said = ", ".join(f"{self._name(index, ' with floor ')}: {value:.4f}" for index, value in found.items())
        self.run.progress.note(f"divergence from the dense model, by the layers over which tokens fall: {said}")
        return kept

    def _name(self, index: int, between: str = " to ") -> str:
        """The width of the fall, and its floor if it has one."""
        width, floor = self._shapes[index]
        return f"{width:.3g}{between}{floor:g}" if floor else f"{width:.3g}"

    def _divergence_of(self, index: int) -> float:
        """Shapes are compared at the same cost: thresholds are found anew first."""
        assert self.target is not None  # a method without a soft stage needs one
        self._fit(index, self.target, shown=False)
        self.rule.take(index)
        return self.run.divergence()

    def _fit(self, index: int, target: float, *, shown: bool) -> float:
        """Find where the fall of this shape must lie, and the thresholds for it."""
        rule = self.rule
        width, floor = self._shapes[index]
        search = FallingShares(self.gates, width=width, centre=target * self.run.shape.layers, floor=floor * target)
        try:
            reached = self._scale(search, target, shown=shown)
        finally:
            self.gates.rule = rule
        rule.shares[index] = torch.tensor(search.fitted.shares)
        rule.thresholds[index] = torch.tensor(search.fitted.thresholds())
        return reached
