"""Shares of the tokens that fall through the layers: where they must fall for a target, and the thresholds for it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thresher.core.gates import falling_shares, hard_keep, threshold_leaving
from thresher.models.gating import Gates, Trace
from thresher.models.rules import Rule


class ByQuantile(Rule):
    """Drops at the threshold that leaves each layer's share of the batch, and remembers these thresholds."""

    name = "by_quantile"

    def __init__(self, shares: Sequence[float]) -> None:
        super().__init__()
        self.shares = shares
        self._seen: list[list[tuple[float, int]]] = [[] for _ in shares]  # threshold and tokens of every batch

    def keep(self, layer: int, scores: Tensor, trace: Trace) -> Tensor:
        alive, protected = trace.alive[-1], trace.protected
        at_first = int((trace.alive[0] & ~protected).sum())
        threshold = threshold_leaving(self.shares[layer], scores[alive & ~protected], of=at_first)
        self._seen[layer].append((threshold, int(alive.sum())))
        return hard_keep(scores, threshold, alive=alive, protected=protected)

    def thresholds(self) -> list[float]:
        """Of each layer, the mean over the batches; 0 where nothing is dropped, and where nobody asked."""
        found = []
        for seen in self._seen:
            total = sum(value * count for value, count in seen)
            found.append(max(0.0, total / max(1, sum(count for _, count in seen))))
        return found

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "shares": list(self.shares)}


class FallingShares:
    """What is moved to find a target: the place where shares fall, which is the earlier, the larger the factor. It
    leaves the gates with the rule `fitted`, which knows the thresholds."""

    def __init__(self, gates: Gates, *, width: float, centre: float, floor: float = 0.0) -> None:
        self._gates, self._width, self._centre, self._floor = gates, width, centre, floor
        self._tried: dict[float, ByQuantile] = {}

    def apply(self, factor: float) -> None:
        """What was tried before comes back with the thresholds that were found then."""
        if factor not in self._tried:
            config = self._gates.config
            shares = falling_shares(
                self._centre / factor,
                self._width,
                layers=len(self._gates.thresholds),
                collapse_last=config.collapse_last,
                floor=self._floor,
                rejoin=config.rejoined,
            )
            self._tried[factor] = ByQuantile(shares)
        self.fitted = self._gates.rule = self._tried[factor]
