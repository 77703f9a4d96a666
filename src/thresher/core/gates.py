"""From scores to decisions: the soft gate that learns, the hard gate that drops, and the thresholds' first values."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

AT_LEAST = 0.02  # a smaller share of the tokens means that only protected ones stay


def hard_keep(
    scores: Tensor, threshold: Tensor | float, *, alive: Tensor, protected: Tensor, rescue: bool = True
) -> Tensor:
    """Which live tokens stay: score strictly above the threshold, or protected. A sequence never becomes empty.

    scores: (batch, tokens), alive and protected: boolean (batch, tokens) -> boolean (batch, tokens). Where every
    sequence has a protected token, none can become empty, and `rescue=False` saves half of the kernels.
    """
    keep = alive & ((scores > threshold) | protected)
    if not rescue:
        return keep
    empty = ~keep.any(dim=-1, keepdim=True)
    best = scores.masked_fill(~alive, float("-inf")).argmax(dim=-1, keepdim=True)
    rescued = torch.zeros_like(keep).scatter(-1, best, True) & alive
    return torch.where(empty, rescued, keep)


def limit_of(threshold: Tensor) -> Tensor:
    """What scores are compared with: at most 0 means that the layer does not prune, even if a score underflows to 0."""
    return torch.where(threshold > 0, threshold, float("-inf")).detach()


def soft_gate(
    scores: Tensor, threshold: Tensor | float, *, temperature: float, alive: Tensor, protected: Tensor
) -> Tensor:
    """sigmoid((score - threshold) / temperature); 1 for protected tokens and 0 for padding.

    scores: (batch, tokens), alive: the tokens that are not padding -> (batch, tokens) in [0, 1].
    """
    gate = torch.sigmoid((scores - threshold) / temperature)
    gate = torch.where(protected, torch.ones_like(gate), gate)
    return torch.where(alive, gate, torch.zeros_like(gate))


def ramp(kind: str, *, layers: int, final: float, collapse_last: bool) -> list[float]:
    """Initial thresholds, one per layer, rising linearly to `final`.

    "plain" starts at the first layer, final * l / L for l = 1..L (the paper's). "late" leaves the first quarter of the
    layers alone: final * max(0, l - q) / (L - q), q = L // 4. `collapse_last` makes the last one infinite.
    """
    quiet = layers // 4 if kind == "late" else 0
    thresholds = [final * max(0, layer - quiet) / (layers - quiet) for layer in range(1, layers + 1)]
    if collapse_last:
        thresholds[-1] = math.inf
    return thresholds


def falling_shares(
    centre: float, width: float, *, layers: int, collapse_last: bool = True, floor: float = 0.0, rejoin: int = 0
) -> list[float]:
    """The share that each layer leaves: 1 before the fall around `centre`, 0 after it, and with `collapse_last` 0 in
    the last layer, whose tokens nobody reads. `floor`: no layer leaves less, but for that one. The last
    `rejoin` layers leave all."""
    shares = [min(1.0, max(floor, (centre - layer) / width + 0.5)) for layer in range(1, layers + 1)]
    found = [share if share >= AT_LEAST else 0.0 for share in shares]
    found = [*found[:-1], 0.0] if collapse_last else found
    return [*found[: layers - rejoin], *[1.0] * rejoin]


def threshold_leaving(share: float, scores: Tensor, *, of: int) -> float:
    """The threshold that leaves a share `of` so many tokens: infinite for none, -1 if no more than these are left.

    scores: (tokens,) of those that are left.
    """
    if share == 0:
        return math.inf
    wanted = share * of
    return -1.0 if wanted >= len(scores) else float(torch.quantile(scores.float(), 1 - wanted / len(scores)))


def protected_tokens(
    names: tuple[str, ...], *, alive: Tensor, input_ids: Tensor | None, separator_id: int | None
) -> Tensor:
    """Boolean (batch, tokens): tokens that no threshold may drop.

    names: "first", "separators", "first_segment" (all up to and including the first separator), or "none".
    alive: (batch, tokens); input_ids: (batch, tokens), needed to find separators.
    """
    protected = torch.zeros_like(alive)
    if "first" in names:
        protected[:, 0] = True
    if "separators" in names or "first_segment" in names:
        if input_ids is None or separator_id is None:
            raise ValueError("protecting separators needs input_ids and separator_id")
        separators = input_ids == separator_id
        if "separators" in names:
            protected |= separators
        if "first_segment" in names:
            separators_before = separators.cumsum(dim=-1) - separators.long()
            protected |= separators_before == 0
    return protected & alive


def first_alone(drops_all: Sequence[bool], protect: Sequence[str]) -> int:
    """The first layer that keeps first tokens only, whatever the text; as many as there are layers if none does.

    drops_all: which layers keep no token but protected ones.
    """
    flags = drops_all if tuple(protect) == ("first",) else ()
    return next((layer for layer, flag in enumerate(flags) if flag), len(drops_all))
