"""What is dropped where: made once from gates, dial and head, and read by all who execute, count or describe it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from thresher.core.gates import first_alone
from thresher.errors import ModelError


@dataclass(frozen=True)
class PruningPlan:
    """Thresholds, one for each layer with the dial in it (0: the layer keeps all, infinity: protected tokens only).

    score, scale and score_queries: how tokens are judged, and by whose attention (see `counted_queries`); protect: the
    groups that stay; reads: what the head reads; rejoin: layers at the end that see all tokens again, dropped ones by
    the states they left behind, and drop none.
    """

    thresholds: tuple[float, ...]
    score: str = "attention"
    scale: str = "relative"
    score_queries: int = 1
    protect: tuple[str, ...] = ("first",)
    separator_id: int | None = None
    reads: str = "first"
    dial: float = 1.0
    rejoin: int = 0

    @staticmethod
    def dense(layers: int, *, reads: str = "first") -> "PruningPlan":
        """Nothing is dropped but what the head does not read."""
        return PruningPlan(thresholds=(0.0,) * layers, reads=reads)

    @property
    def layers(self) -> int:
        return len(self.thresholds)

    @cached_property
    def alone(self) -> int:
        """The layer that passes on first tokens only; as many as there are layers if none does.

        One with an infinite threshold does, and the last in any case where the head reads first tokens. After it each
        first token is alone.
        """
        if self.reads != "first":
            return self.layers
        return min(first_alone([value == math.inf for value in self.thresholds], self.protect), self.layers - 1)

    @property
    def whole_from(self) -> int:
        """The layer that dropped tokens rejoin; as many as there are layers if they do not."""
        return self.layers - self.rejoin

    @cached_property
    def pruning_layers(self) -> tuple[int, ...]:
        """Layers that read scores. Where first tokens only are passed on, or tokens are back, none is needed."""
        last = min(self.alone, self.whole_from)
        return tuple(index for index, threshold in enumerate(self.thresholds[:last]) if threshold > 0)

    @property
    def restores(self) -> bool:
        """Whether dropped tokens are read, by the states they leave behind."""
        return self.reads != "first"

    def at_dial(self, dial: float) -> "PruningPlan":
        """The same at another dial: 0 keeps all, and infinite thresholds stay at any other. Not of a plan at dial 0,
        which has lost its thresholds."""
        if self.dial == 0 and dial != 0:
            raise ModelError(f"at dial 0 no thresholds are left to scale; load the model again with dial = {dial:g}")
        scaled = (0.0 if dial == 0 else value * (dial / self.dial) for value in self.thresholds)
        return replace(self, thresholds=tuple(scaled), dial=dial)

    def with_thresholds(self, thresholds: Sequence[float]) -> "PruningPlan":
        """The same way of judging with other thresholds."""
        return replace(self, thresholds=tuple(thresholds))
