"""What an encoder layer is made of: one description for all who compute, convert or count it.

A layer attends, drops tokens, and finishes. How its parts are put together after attention is written here, once, for
tensors and for whatever else has the same parts (the nodes of an exported graph). Only executors whose kernels take
several parts at a time write it again. A bias that a model does not have is zeros to whoever computes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from thresher.errors import ModelError

Value = TypeVar("Value")  # what a layer computes with: tensors, or names of nodes in a graph
# How the features of layers are called, in `LayerSpec.features` and wherever one is refused.
POST_NORM, PRE_NORM = "post-norm", "pre-norm"
GATED, WINDOW, CONVOLUTION = "gated feed-forward", "attention windows", "convolution"
POSITION_NAMES = {
    "table": "absolute positions",
    "distance": "distance bias",
    "rotary": "rotary positions",
    "disentangled": "disentangled positions",
}
# What the eight families of BERT's kin need.
BERT_LIKE = frozenset({POST_NORM, POSITION_NAMES["table"], POSITION_NAMES["distance"]})


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer, without its weights.

    pre_norm: norms stand before attention and feed-forward and not after the sums; a norm that is identity has no
    weights. gated: the feed-forward's inner states are activation(first half) x second half. positions: how attention
    learns where tokens are: not at all (the embeddings' table says it), by a bias for each distance, by rotating
    queries and keys, or by products with embeddings of distances. window: keys are at most so far from the query.
    Distances and rotations go by original positions, whatever was dropped between. root: what logits are divided by;
    the square root of the head's width if not given. relative_rows: of the table of distances, if there is one, and
    relative_by: what is multiplied with it, queries, keys or both; kernel: of the convolution beside the layer, if
    there is one, and groups: how many parts of the width it sees apart.
    """

    heads: int
    width: int
    ffn_width: int
    activation: Callable[[Tensor], Tensor]
    pre_norm: bool = False
    gated: bool = False
    positions: str = "table"
    rotary_base: float | None = None
    window: int | None = None
    root: float | None = None
    relative_rows: int = 0
    relative_by: tuple[str, ...] = ("queries", "keys")
    kernel: int = 0
    groups: int = 1

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def halves(self) -> int:
        """Of what the feed-forward widens to: what is activated, and the gate if there is one."""
        return 2 if self.gated else 1

    @property
    def divisor(self) -> float:
        return math.sqrt(self.head_width) if self.root is None else self.root

    @property
    def features(self) -> frozenset[str]:
        """What an executor must know to compute it, in words."""
        asked = {PRE_NORM if self.pre_norm else POST_NORM, POSITION_NAMES[self.positions]}
        asked |= {GATED} if self.gated else set()
        asked |= {WINDOW} if self.window is not None else set()
        return frozenset(asked | ({CONVOLUTION} if self.kernel else set()))


def check_features(specs: Iterable[LayerSpec], supported: frozenset[str], *, who: str, instead: str) -> None:
    """Refuse what an executor does not know, by name, before it computes something else."""
    missing = sorted(frozenset().union(*(spec.features for spec in specs)) - supported)
    if missing:
        raise ModelError(f"{who} cannot compute layers with {' and '.join(missing)} yet; {instead}")


@dataclass(frozen=True)
class Steps(Generic[Value]):
    """The parts of a layer after attention: (rows, width) -> (rows, width) each, and the sum of two.

    `norms`: after attention and after the feed-forward; with pre_norm, before them.
    """

    output: Callable[[Value], Value]
    norms: tuple[Callable[[Value], Value], Callable[[Value], Value]]
    feed_forward: Callable[[Value], Value]
    add: Callable[[Value, Value], Value]  # may overwrite the first


def attention_input(spec: LayerSpec, steps: Steps[Value], hidden: Value) -> Value:
    """What queries, keys and values are made of."""
    return steps.norms[0](hidden) if spec.pre_norm else hidden


def finish(spec: LayerSpec, steps: Steps[Value], context: Value, hidden: Value) -> Value:
    """The layer's output, from what attention found and what the layer was given."""
    attended = steps.add(steps.output(context), hidden)
    if spec.pre_norm:
        return steps.add(steps.feed_forward(steps.norms[1](attended)), attended)
    attended = steps.norms[0](attended)
    return steps.norms[1](steps.add(steps.feed_forward(attended), attended))


def inner_states(spec: LayerSpec, states: Tensor, gate: Tensor | None = None) -> Tensor:
    """What the feed-forward narrows again, of what it widened: (..., ffn_width) each; the gate if it has one."""
    activated = spec.activation(states)
    return activated if gate is None else activated * gate
