"""Rivals that keep a share of the original length in every layer: the best by score (SpAtten), or any at random."""

import math

from thresher.models.rules import TopShare
from thresher.training.method import Method

LEAST_SHARE = 0.01


def quiet_layers(layers: int) -> int:
    """How many layers keep everything: three, or 15% of a deep model."""
    return max(3, math.ceil(0.15 * layers))


def retain_shares(final: float, *, layers: int) -> list[float]:
    """The kept share of the original length after each layer, falling linearly to `final`, which may be negative.

    No share is below LEAST_SHARE, as in the code that the LTP paper's authors published.
    """
    quiet = quiet_layers(layers)
    steps = [max(0, layer - quiet) for layer in range(1, layers + 1)]
    return [max(LEAST_SHARE, 1.0 + (final - 1.0) * step / max(1, layers - quiet)) for step in steps]


class Spatten(Method):
    """SpAtten's token pruning: top-k by attention received, k a share of the text's length that falls linearly."""

    name = "spatten"
    adjusts = "retain ratio"

    def begin(self) -> None:
        layers = self.run.shape.layers
        self._begin_with(
            TopShare([1.0] * layers, order=self._order(), seed=self.config.seed),
            pruning=[float(layer >= quiet_layers(layers)) for layer in range(layers)],
            way_out="choose a method that prunes the first layers too, such as manual",
        )

    def meet(self, target: float) -> float:
        return self._scale(self, target)

    def apply(self, factor: float) -> None:
        """Factor 0 keeps everything, factor 1 ends at the least share, more has a negative final ratio."""
        rule = self.gates.rule
        assert isinstance(rule, TopShare)  # set in begin
        rule.set_shares(retain_shares(1.0 - factor, layers=self.run.shape.layers))

    def _order(self) -> str:
        return "cumulative" if self.config.cumulative_scores else "score"


class Random(Spatten):
    """Keeps as many tokens as SpAtten's schedule in every layer, chosen by chance: what are the scores worth?"""

    name = "random"
    recordable = False  # its noise comes from the host

    def _order(self) -> str:
        return "random"
