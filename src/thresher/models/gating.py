"""The gates of one model: thresholds or another rule, mode, and what happened in the latest forward pass."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from thresher.config import AUTO, PruneConfig
from thresher.core.gates import first_alone, hard_keep, limit_of, protected_tokens, soft_gate
from thresher.core.scores import (
    at_least_float32,
    attention_probabilities,
    counted_queries,
    relative_scores,
    scores_in,
    value_scores,
)
from thresher.errors import ConfigError, ModelError
from thresher.methods import rejoin_of, score_of
from thresher.models.rounding import Products, Rounding, plain_products
from thresher.models.rules import Rule
from thresher.models.slots import Behind, Slots, gathered

MODES = ("off", "soft", "hard")
SOFT_MASKS = ("cumulative", "plain", "straight")
UNTRAINED_SCORE = "attention"  # of gates whose score was left open, until a method settles it


@dataclass
class Trace:
    """One forward pass, layer by layer. All tensors are (batch, tokens).

    `gates` holds soft gates in soft mode and keep decisions (boolean, cumulative) in hard mode; `alive` has one more
    entry than there are layers: what the first layer saw, and what each one left. The layer `whole_from` sees all
    tokens again, and it and those after it leave all; where dropped tokens do not rejoin, no layer has that number.
    """

    protected: Tensor
    alive: list[Tensor]
    whole_from: int = sys.maxsize
    scores: list[Tensor] = field(default_factory=list)
    gates: list[Tensor] = field(default_factory=list)
    input_ids: Tensor | None = None
    position_ids: Tensor | None = None  # (batch or 1, tokens) what the caller calls their positions, if anything
    slots: Slots | None = None  # where the layers' tensors have live tokens, if not at their places
    outputs: list[Slots] = field(default_factory=list)  # the same of every layer's output
    behind: Behind = field(default_factory=Behind)  # what those had that are no longer there, if the head reads it

    @property
    def is_whole(self) -> bool:
        """Whether the present layer, of which nothing is noted yet, has all tokens, those dropped before among them."""
        return len(self.scores) >= self.whole_from

    def seen(self) -> Tensor:
        """What is alive in the present layer: (batch, tokens)."""
        return self.alive[0] if self.is_whole else self.alive[-1]

    def lengths(self) -> Tensor:
        """(batch,) tokens at the input."""
        return self.alive[0].sum(dim=-1)

    def kept(self) -> Tensor:
        """(batch, layers) tokens left by each layer: whole numbers in hard mode, in soft mode sums of the faded tokens'
        shares; all of a text's tokens with the soft mask "plain", which scales outputs and leaves every token alive."""
        return torch.stack([alive.sum(dim=-1) for alive in self.alive[1:]], dim=-1)

    def kept_shares(self, rows: int | None = None) -> Tensor:
        """(layers,) share of the tokens that each layer leaves, without protected ones, which always stay: of the
        batch's first `rows`, or of all."""
        protected = self.protected[:rows].sum()
        return (self.kept()[:rows].sum(dim=0) - protected) / (self.lengths()[:rows].sum() - protected).clamp(min=1)

    def outputs_at(self) -> list[tuple[Tensor | None, Tensor]]:
        """Of every layer's output, the original position of what it has, (batch, slots), or None if tokens are at
        their places; and which of that the layer kept."""
        if self.outputs:
            return [(slots.places, slots.live) for slots in self.outputs]
        return [(None, alive) for alive in self.alive[1:]]


class Gates(nn.Module):
    """Thresholds and the pruning state that the layers of one model share.

    `rule`, where there is one, decides instead of the thresholds; `rounding`, where there is one, makes products lose
    what int8 loses; `price`, where there is one, is a number that learned thresholds answer to, saved with the rest.
    A forward pass calls `begin`, then `probabilities` and `decide` once per layer pass, in order, and `end`.
    """

    thresholds: nn.Parameter  # (layers,)
    rule: Rule | None
    rounding: Rounding | None
    price: Tensor | None  # ()

    def __init__(
        self, config: PruneConfig, thresholds: Sequence[float], *, restores: bool = False, rejoins: bool = False
    ) -> None:
        """`restores`: the head reads dropped tokens, too, by the states they leave behind; `rejoins`: and gains where
        they take part in the last layers again."""
        super().__init__()
        self.given = config  # as it was, with what a method settles
        score = UNTRAINED_SCORE if config.score == AUTO else config.score
        self.config = replace(config, score=score, rejoin=config.rejoined)
        self.restores, self.rejoins = restores, rejoins
        self.thresholds = nn.Parameter(torch.tensor(list(thresholds), dtype=torch.float32), requires_grad=False)
        self._clear_whole_layers()
        self.register_module("rule", None)
        self.register_module("rounding", None)
        self.register_buffer("price", None)
        self.left_out: Tensor | None = None  # (layers,) boolean: those that pass on what they get, for the moment
        self.shortens = False  # leaves dropped tokens out of the layers' tensors
        self.watched = False  # by somebody who looks into the layers' tensors, and expects all tokens in them
        self.alone_from = len(thresholds)  # while recording, when nobody can look: what `first_alone` said before
        self.mode = "hard"
        self.soft_mask = "cumulative"
        self.temperature = 0.1
        self.trace: Trace | None = None
        self.running = False
        self.about: dict[str, Any] = {}  # what training knows of the model (task, recipe); saved with it

    def settle(self, method: str) -> None:
        """Take the method's own score and layers to rejoin, where none were chosen: whoever trains with it says so
        first, and the first one decides."""
        if self.given.score == AUTO:
            self.config = replace(self.config, score=score_of(method))
        if self.given.rejoin is None and self.rejoins:
            self.config = replace(self.config, rejoin=rejoin_of(method, layers=len(self.thresholds)))
        self.given = self.config
        self._clear_whole_layers()

    def _clear_whole_layers(self) -> None:
        """Layers that dropped tokens rejoin drop nothing, whatever thresholds are given for them."""
        with torch.no_grad():
            self.thresholds[len(self.thresholds) - self.config.rejoined :] = 0.0

    def set_mode(self, mode: str, *, soft_mask: str | None = None) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode = {mode!r} is not one of: {', '.join(MODES)}")
        if soft_mask is not None and soft_mask not in SOFT_MASKS:
            raise ConfigError(f"soft_mask = {soft_mask!r} is not one of: {', '.join(SOFT_MASKS)}")
        self.mode = mode
        self.soft_mask = soft_mask or self.soft_mask
        for parameter in self.learned():
            parameter.requires_grad_(mode == "soft")
        self.trace = None

    def learned(self) -> list[nn.Parameter]:
        """What a soft stage learns beside the weights: the thresholds, or the rule's own parameters."""
        return [self.thresholds] if self.rule is None else list(self.rule.parameters())

    @contextmanager
    def leaving_out(self, layers: Tensor) -> Iterator[None]:
        """Pass these layers by for a while, (layers,) boolean: LayerDrop. They are computed all the same: a recorded
        step has all layers, and which of them count lies in a tensor."""
        self.left_out = layers
        try:
            yield
        finally:
            self.left_out = None

    @contextmanager
    def shortening(self, wanted: bool = True) -> Iterator[None]:
        """For a while, layers compute only the tokens that are left: the same result, in tensors of changing length.

        Without effect where first tokens may be dropped, which would leave the place where heads look for them.
        """
        before, self.shortens = self.shortens, wanted and not self.watched and "first" in self.config.protect
        try:
            yield
        finally:
            self.shortens = before

    def first_alone(self) -> int:
        """The layer from which on only first tokens are left, whatever the text; the number of layers if there is none.

        It waits for the device."""
        if self.restores:
            return len(self.thresholds)
        alone = self.thresholds == math.inf if self.rule is None else self.rule.drops_all(len(self.thresholds))
        return first_alone(alone.tolist(), self.config.protect)

    def set_thresholds(self, values: Sequence[float] | Tensor) -> None:
        """Replace all thresholds; NaN or a wrong number of them is an error."""
        given = [float(value) for value in values]
        if len(given) != len(self.thresholds):
            raise ConfigError(f"{len(given)} thresholds given for a model with {len(self.thresholds)} layers")
        if any(math.isnan(value) for value in given):
            raise ConfigError(f"thresholds {given} contain NaN; every threshold must be a number or infinity")
        with torch.no_grad():
            self.thresholds.copy_(torch.tensor(given, dtype=self.thresholds.dtype))
        self._clear_whole_layers()

    def require_thresholds(self) -> None:
        """Refuse another rule, for whoever only knows thresholds."""
        if self.rule is not None:
            raise ModelError(
                f"the engine prunes by thresholds, and this model by the rule '{self.rule.name}'; "
                "measure it with: thresher eval"
            )

    def begin(self, attention_mask: Tensor, input_ids: Tensor | None, position_ids: Tensor | None = None) -> None:
        """Start a forward pass. attention_mask, input_ids: (batch, tokens); position_ids: (batch or 1, tokens)."""
        if attention_mask.dim() != 2:
            raise ModelError(
                f"attention_mask has {attention_mask.dim()} dimensions; give the tokenizer's mask, (batch, tokens)"
            )
        if input_ids is None and {"separators", "first_segment"} & set(self.config.protect):
            raise ModelError("protecting separators needs input_ids; inputs_embeds alone do not show where they are")
        alive = attention_mask.bool()
        if not _recording(alive) and not bool(alive[:, 0].all()):
            raise ModelError(
                "a sequence starts with padding or is empty; pad on the right and give every sequence a first token"
            )
        protected = protected_tokens(
            self.config.protect, alive=alive, input_ids=input_ids, separator_id=self.config.separator_id
        )
        slots = Slots.of(alive) if self.shortens and self.mode == "hard" else None
        whole_from = len(self.thresholds) - self.config.rejoined
        self.trace = Trace(protected, [alive], whole_from, input_ids=input_ids, position_ids=position_ids, slots=slots)
        self.running = True

    def end(self) -> None:
        """The forward pass is over; its trace stays readable."""
        self.running = False

    def places(self) -> Tensor:
        """The original positions of what the layer's tensors hold: (batch, slots), or (1, tokens) for all texts."""
        trace = self._running()
        if trace.slots is not None:
            return trace.slots.places
        return torch.arange(trace.protected.shape[1], device=trace.protected.device)[None]

    def positions(self) -> Tensor:
        """By what queries and keys are rotated: places, or what the caller gave for them. (batch or 1, slots)."""
        places, given = self.places(), self._running().position_ids
        if given is None:
            return places
        rows = max(len(given), len(places))
        return given.expand(rows, -1).gather(1, places.expand(rows, -1))

    def entered(self, hidden: Tensor) -> Tensor:
        """What a layer works on, from what the one before passed on: the same, but in the layer that dropped tokens
        rejoin all of them, each with its last state. hidden: (batch, slots, width)."""
        trace = self._running()
        if trace.slots is None or len(trace.scores) != trace.whole_from:
            return hidden
        if trace.behind.places:
            hidden, trace.behind = trace.behind.with_last(trace.slots, hidden), Behind()
        trace.slots = Slots.of(trace.alive[0])
        return hidden

    def products(self) -> Products:
        """How the layer that begins multiplies with its matrices."""
        return plain_products if self.rounding is None else self.rounding.products_of(len(self._running().scores))

    def probabilities(self, logits: Tensor, inside: Tensor | None = None) -> Tensor:
        """Attention over what is still alive. logits: (batch, heads, queries, keys); inside: of windows, or None."""
        return attention_probabilities(logits, self.seen(), inside)

    def bias(self, whole: Tensor) -> Tensor:
        """The layer's part of a bias (batch, heads, tokens, tokens) by original positions."""
        slots = self._running().slots
        return whole if slots is None or slots.live.shape[1] == whole.shape[-1] else slots.bias(whole)

    def leave(self, hidden: Tensor) -> Tensor | None:
        """After `decide`: which slots of the layer's tensors go on, if not all: (batch, slots).

        hidden: (batch, slots, width), with which tokens entered the layer; a head that reads dropped tokens finds that.
        """
        trace = self.trace
        if trace is None or trace.slots is None:
            return None
        most = None
        if _recording(trace.protected):
            most = 1 if len(trace.gates) > self.alone_from else trace.slots.live.shape[1]
        before = trace.slots
        trace.slots, order = before.narrowed(trace.alive[-1], most=most)
        trace.outputs.append(trace.slots)
        if order is None:
            return None
        count = trace.slots.places.shape[1]
        if self.restores:
            trace.behind.add(before.places.gather(1, order[:, count:]), gathered(hidden, order[:, count:]))
        return order[:, :count]

    def passed_on(self, given: Tensor, made: Tensor) -> Tensor:
        """After `decide`: what the layer made, or what it was given where it is left out, and, for heads that read
        dropped tokens, where a token is no longer alive: it keeps the state with which it entered. A token that fades
        keeps as much of it as it has faded. given, made: (batch, slots, width); for such heads the last layer passes on
        all tokens in their places."""
        trace = self.trace
        if trace is None:
            return made
        if self.restores and not (self.mode == "soft" and self.soft_mask == "plain"):
            alive = (trace.alive[-1] if trace.slots is None else trace.slots.live)[..., None]
            made = (
                torch.where(alive, made, given)
                if alive.dtype == torch.bool
                else torch.lerp(given, made, alive.to(made))
            )
        if self.left_out is not None:
            made = torch.where(self.left_out[len(trace.gates) - 1], given, made)
        if trace.slots is None or not trace.behind.places or len(trace.gates) < len(self.thresholds):
            return made
        behind, trace.behind = trace.behind, Behind()  # a trace outlives the pass: it must not hold its states
        trace.outputs[-1] = Slots.of(trace.alive[-1])
        return behind.with_last(trace.slots, made)

    def decide(self, probabilities: Tensor, value: Tensor) -> Tensor | None:
        """Score the tokens, let some of them go, and return what the layer's output is multiplied by, if anything.

        probabilities: (batch, heads, queries, keys), value: (batch, heads, keys, width of a head).
        """
        trace = self._running()
        layer, alive, seen, whole = len(trace.scores), trace.seen(), self.seen(), trace.is_whole
        scores = scores_in(self.config.scale, self._relative(probabilities, value, seen), seen)
        if trace.slots is not None:
            scores = trace.slots.spread(scores, alive.shape[1])
        trace.scores.append(scores)
        if self.mode == "hard":
            keep = alive if whole else self._keep(layer, scores.detach(), trace)
            if self.left_out is not None:
                keep = torch.where(self.left_out[layer], alive, keep)
            trace.gates.append(keep)
            trace.alive.append(keep)
            return None
        gate = alive.to(scores.dtype) if whole else self._soft(layer, scores, trace)
        trace.gates.append(gate)
        if self.soft_mask == "plain":
            trace.alive.append(alive)
            return gate
        trace.alive.append(alive * gate)
        return None

    def seen(self) -> Tensor:
        """What is alive, in the places where the layer's tensors have it: (batch, slots)."""
        trace = self._running()
        return trace.seen() if trace.slots is None else trace.slots.live

    def _relative(self, probabilities: Tensor, value: Tensor, alive: Tensor) -> Tensor:
        counted = counted_queries(self.places(), self.config.score_queries)
        if self.config.score == "value":
            return value_scores(probabilities, alive, at_least_float32(value).norm(dim=-1), counted)
        relative = relative_scores(probabilities, alive, counted)
        # A fading key gets less attention because it fades; judge it by what it would get in full.
        return relative / alive.clamp(min=1e-6) if alive.is_floating_point() else relative

    def _keep(self, layer: int, scores: Tensor, trace: Trace) -> Tensor:
        """Which tokens stay, by the rule or by the layer's threshold."""
        if self.rule is not None:
            return self.rule.keep(layer, scores, trace)
        limit, rescue = limit_of(self.thresholds[layer]), "first" not in self.config.protect
        return hard_keep(scores, limit, alive=trace.alive[-1], protected=trace.protected, rescue=rescue)

    def _soft(self, layer: int, scores: Tensor, trace: Trace) -> Tensor:
        if self.rule is not None:
            return self.rule.soft(layer, scores, trace)
        threshold, alive, protected = self.thresholds[layer], trace.alive[0], trace.protected
        if self.soft_mask != "straight":
            return soft_gate(scores, threshold, temperature=self.temperature, alive=alive, protected=protected)
        # Decides as the hard gate does; only the threshold gets the soft one's gradient, and scores get none.
        faded = soft_gate(scores.detach(), threshold, temperature=self.temperature, alive=alive, protected=protected)
        sure = hard_keep(scores.detach(), limit_of(threshold), alive=alive, protected=protected)
        return sure.to(faded.dtype) + (faded - faded.detach())

    def _running(self) -> Trace:
        if self.trace is None or not self.running or len(self.trace.scores) >= len(self.thresholds):
            raise ModelError(
                "the encoder was called by itself; call the whole model, which tells the gates what is padding "
                "(gradient checkpointing is not supported)"
            )
        return self.trace

    def __getstate__(self) -> dict[str, Any]:
        """A copied model starts without a trace: traces hold graph tensors, which cannot be copied."""
        return {**self.__dict__, "trace": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Follow the model to another device, but never below float32 (model.half() must not round thresholds), and a
        rule's fixed numbers not below their own precision: the last digit of a share decides how many tokens stay."""
        exact = [value.detach().clone() for value in self._floats()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for value, before in zip(self._floats(), exact, strict=True):
            least = torch.float32 if isinstance(value, nn.Parameter) else before.dtype
            value.data = before.to(device=value.device, dtype=torch.promote_types(value.dtype, least))
        return self

    def _floats(self) -> list[Tensor]:
        return [value for value in (*self.parameters(), *self.buffers()) if value.is_floating_point()]


def _recording(tensor: Tensor) -> bool:
    """Into a CUDA graph: then the host cannot look at values."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
