"""Rules other than thresholds: how many tokens a layer keeps, and which come first. They are saved with the model.

A rule is a module, so that its numbers move, resume and restore with the weights.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from thresher.core.ranks import text_noise, top_keep
from thresher.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from thresher.models.gating import Trace

ORDERS = ("score", "cumulative", "random")


class Rule(nn.Module):
    """Decides instead of thresholds. A kept token was alive, protected ones are kept, and never is none kept."""

    name: ClassVar[str]

    @abstractmethod
    def keep(self, layer: int, scores: Tensor, trace: "Trace") -> Tensor:
        """Which tokens layer `layer` (from 0) keeps. scores: (batch, tokens) -> boolean (batch, tokens)."""

    def soft(self, layer: int, scores: Tensor, trace: "Trace") -> Tensor:
        """What a soft stage multiplies the layer's output by: (batch, tokens) -> (batch, tokens) in [0, 1]."""
        raise ModelError(f"rule '{self.name}' has no soft form; use mode 'hard' or 'off'")

    def drops_all(self, layers: int) -> Tensor:
        """(layers,) which layers certainly keep no token but protected ones, whatever the text."""
        return torch.zeros(layers, dtype=torch.bool)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What `rule_from` makes the same rule of."""


class Ranked(Rule):
    """Keeps a number of tokens that does not depend on the scores: the first ones in `order`.

    "score" ranks by the layer's own scores, "cumulative" by their sum over the layers so far, "random" by chance, the
    same for a text every time.
    """

    def __init__(self, *, order: str = "score", seed: int = 0) -> None:
        super().__init__()
        if order not in ORDERS:
            raise ConfigError(f"order = {order!r} is not one of: {', '.join(ORDERS)}")
        self.order, self.seed = order, seed

    @abstractmethod
    def counts_for(self, layer: int, lengths: Tensor) -> Tensor:
        """How many tokens a layer keeps of texts with these original lengths: (batch,) -> (batch,)."""

    def keep(self, layer: int, scores: Tensor, trace: "Trace") -> Tensor:
        counts = self.counts_for(layer, trace.lengths())
        return top_keep(self._priority(scores, trace), counts, alive=trace.alive[-1], protected=trace.protected)

    def _priority(self, scores: Tensor, trace: "Trace") -> Tensor:
        if self.order == "score":
            return scores
        if self.order == "cumulative":
            return torch.stack(trace.scores).sum(dim=0).detach()
        if trace.input_ids is None:
            raise ModelError("dropping at random needs input_ids, which tell one text from another")
        return text_noise(trace.input_ids, alive=trace.alive[0], seed=self.seed)


class TopShare(Ranked):
    """Layer l keeps shares[l] of the text's original length, rounded to the nearest number and at least one."""

    name = "top_share"
    shares: Tensor  # (layers,)

    def __init__(self, shares: Sequence[float], *, order: str = "score", seed: int = 0) -> None:
        super().__init__(order=order, seed=seed)
        self.register_buffer("shares", torch.tensor(list(shares), dtype=torch.float64))

    def set_shares(self, shares: Sequence[float]) -> None:
        self.shares.copy_(torch.tensor(list(shares), dtype=torch.float64))

    def counts_for(self, layer: int, lengths: Tensor) -> Tensor:
        return (lengths * self.shares[layer]).round().long().clamp(min=1)

    def drops_all(self, layers: int) -> Tensor:
        return self.shares <= 0  # one token is left, the protected one

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "order": self.order, "seed": self.seed, "shares": self.shares.tolist()}


class TopCount(Ranked):
    """Layer l keeps counts[l] tokens of every text, or all of a shorter one."""

    name = "top_count"
    counts: Tensor  # (layers,)

    def __init__(self, counts: Sequence[int], *, order: str = "score", seed: int = 0) -> None:
        super().__init__(order=order, seed=seed)
        self.register_buffer("counts", torch.tensor(list(counts), dtype=torch.long))

    def set_counts(self, counts: Sequence[int] | Tensor) -> None:
        self.counts.copy_(torch.as_tensor(counts, dtype=torch.long))

    @contextmanager
    def trying(self, counts: Sequence[int] | Tensor) -> Iterator[None]:
        """Other counts for a while; where they are a tensor on the device, the host takes no part."""
        own = self.counts.clone()
        self.set_counts(counts)
        try:
            yield
        finally:
            self.set_counts(own)

    def counts_for(self, layer: int, lengths: Tensor) -> Tensor:
        return self.counts[layer].expand_as(lengths)

    def drops_all(self, layers: int) -> Tensor:
        return self.counts == 1

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "order": self.order, "seed": self.seed, "counts": self.counts.tolist()}


def rule_from(saved: Any, *, layers: int) -> Rule:
    """The rule that `to_dict` described; anything else is a ConfigError."""
    kinds: dict[str, tuple[type[TopShare] | type[TopCount], str]] = {
        TopShare.name: (TopShare, "shares"),
        TopCount.name: (TopCount, "counts"),
    }
    name = saved.get("name") if isinstance(saved, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise ConfigError(f"rule {name!r} is not one of: {', '.join(kinds)}")
    kind, field = kinds[name]
    values, seed = saved.get(field), saved.get("seed", 0)
    valid = _is_share if kind is TopShare else _is_count
    if not isinstance(values, list) or len(values) != layers or not all(valid(value) for value in values):
        raise ConfigError(f"rule '{name}' needs a list '{field}' of {layers} numbers, one per layer")
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"rule '{name}' has seed = {seed!r}; it must be a whole number from 0 on")
    return kind(values, order=saved.get("order", "score"), seed=seed)


def _is_share(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**31  # no float is as large as 10**400


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
