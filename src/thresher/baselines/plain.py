"""Rivals that are thresholds, so that the engine runs them: a fixed ramp, one layer that drops all, and no pruning."""

import math

from thresher.core.gates import ramp
from thresher.core.heads import OF_TOKENS
from thresher.errors import ConfigError
from thresher.training.budget import SLACK
from thresher.training.method import Method, Thresholds


class Manual(Thresholds):
    """The paper's manual thresholds: a linear ramp from the first layer on, scaled to the target."""

    name = "manual"

    def begin(self) -> None:
        config = self.gates.config
        layers = self.run.shape.layers
        self.gates.set_thresholds(
            ramp("plain", layers=layers, final=config.final_threshold, collapse_last=config.collapse_last)
        )
        super().begin()


class Collapse(Method):
    """Everything but the protected tokens is dropped at one layer; no score is looked at."""

    name = "collapse"
    adjusts = "layer"

    def begin(self) -> None:
        super().begin()
        if "first" not in self.gates.config.protect:
            raise ConfigError("method = 'collapse' keeps only protected tokens; add 'first' to protect")
        if self.run.means in OF_TOKENS:
            raise ConfigError(
                "method = 'collapse' leaves first tokens alone, and the head reads every token; use another method"
            )
        self._check_target(self._from(0))
        self.gates.set_thresholds(self._from(self.run.shape.layers - 1))

    def meet(self, target: float) -> float:
        """The latest layer that meets the target: it keeps the most."""
        for layer in reversed(range(self.run.shape.layers)):
            self.gates.set_thresholds(self._from(layer))
            reached = self.run.cost()
            self.run.searched(reached)
            if reached <= target + SLACK:
                break
        return reached

    def _from(self, layer: int) -> list[float]:
        return [0.0] * layer + [math.inf] * (self.run.shape.layers - layer)


class Dense(Method):
    """No pruning, trained on for as many steps with the same distillation: the fair control."""

    name = "dense"
    prunes = False

    def begin(self) -> None:
        super().begin()
        self.gates.set_thresholds([0.0] * self.run.shape.layers)
