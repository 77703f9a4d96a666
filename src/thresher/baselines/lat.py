"""Length-Adaptive Transformer: train with random lengths, then search for the lengths that cost the target."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from thresher.baselines.evolution import Candidate, Lengths, evolve
from thresher.core.cost import relative_flops
from thresher.core.losses import distillation_loss
from thresher.errors import ConfigError
from thresher.models.attach import gates_of
from thresher.models.heads import outputs_in
from thresher.models.rules import TopCount
from thresher.training.budget import SLACK
from thresher.training.method import Method
from thresher.training.objective import Loss, model_inputs, taught_loss

RANDOM_MODELS = 2  # in every step, beside the full and the smallest


def shortest(low: int, high: int) -> int:
    return low


def uniform(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, ()))


def drop_lengths(
    longest: int,
    rate: float,
    pick: Callable[[int, int], int],
    *,
    layers: int,
    left_out: frozenset[int] = frozenset(),
) -> Lengths:
    """LengthDrop: l_i is picked from [ceil((1 - rate) l_(i-1)), l_(i-1)]; a layer that is left out drops nothing."""
    found, length = [], longest
    for layer in range(layers):
        if layer not in left_out:
            length = pick(max(1, math.ceil((1.0 - rate) * length)), length)
        found.append(length)
    return tuple(found)


def sample_layers(layers: int, probability: float) -> frozenset[int]:
    """LayerDrop: each layer is left out with this probability."""
    return frozenset((torch.rand(layers) < probability).nonzero().flatten().tolist())


class Lat(Method):
    """LengthDrop and LayerDrop with the sandwich rule and in-place distillation, then an evolutionary search."""

    name = "lat"
    adjusts = "lengths"
    long_finish = True

    def begin(self) -> None:
        if self.config.distill_hidden > 0:
            raise ConfigError(
                f"distill_hidden = {self.config.distill_hidden} matches hidden states, which method lat does not: its "
                "small models learn from the outputs of the full one; set distill_hidden = 0"
            )
        self._longest = self.run.longest
        self._drawn: tuple[Tensor, Tensor] | None = None
        self._front: list[Candidate] = []
        self._begin_with(TopCount([self._longest] * self.run.shape.layers))

    @property
    def rule(self) -> TopCount:
        rule = self.gates.rule
        assert isinstance(rule, TopCount)  # set in begin
        return rule

    def meet(self, target: float) -> float:
        """One rate for all layers: checkpoints are compared at it, and the search starts around it."""
        return self._scale(self, target)

    def apply(self, factor: float) -> None:
        rate = 1.0 - (1.0 - self.config.length_drop) ** factor
        self.rule.set_counts(self._lengths(rate, shortest))

    def before_hard_step(self, progress: float) -> None:
        """Draw the small models of the step, the smallest and the random ones: (models, layers) lengths, and which
        layers are left out. They stay in the same tensors, where a recorded step finds them."""
        layers, rows = self.run.shape.layers, []
        for pick in (shortest, *[uniform] * RANDOM_MODELS):
            left_out = sample_layers(layers, self.config.layer_drop)
            lengths = self._lengths(self.config.length_drop, pick, left_out=left_out)
            rows.append((lengths, [layer in left_out for layer in range(layers)]))
        drawn = [torch.tensor(column) for column in zip(*rows, strict=True)]
        if self._drawn is None:
            device = self.gates.thresholds.device
            self._drawn = (drawn[0].to(device), drawn[1].to(device))
        else:
            for mine, new in zip(self._drawn, drawn, strict=True):
                mine.copy_(new)

    def hard_loss(self, model: nn.Module, batch: dict[str, Tensor], *, teacher: nn.Module | None) -> Iterator[Loss]:
        """The sandwich, averaged: the full model learns the task, from labels and the dense teacher as all methods do;
        the smallest and two random ones learn from it."""
        assert self._drawn is not None  # before the step
        share = 1 / (1 + len(self._drawn[0]))
        gates, inputs = gates_of(model), model_inputs(batch)
        gates.set_mode("off")
        logits = outputs_in(model(**inputs))
        gates.set_mode("hard")
        taught = taught_loss(logits, batch, config=self.config, means=self.run.means)
        yield Loss(total=share * taught, flops=torch.full((), share, device=logits.device))
        on_cpu = logits.device.type == "cpu"  # a recorded step has tensors of one length
        for lengths, left_out in zip(*self._drawn, strict=True):
            with self.rule.trying(lengths), gates.leaving_out(left_out), gates.shortening(on_cpu):
                small = outputs_in(model(**inputs))
            trace = gates.trace
            assert trace is not None  # the forward pass above leaves one
            flops = relative_flops(self.run.shape, trace.lengths(), trace.kept())
            alive = inputs["attention_mask"].bool()
            taught = distillation_loss(small, logits.detach(), temperature=1.0, means=self.run.means, alive=alive)
            yield Loss(total=share * taught, flops=share * flops)

    def _lengths(
        self, rate: float, pick: Callable[[int, int], int], *, left_out: frozenset[int] = frozenset()
    ) -> Lengths:
        return drop_lengths(self._longest, rate, pick, layers=self.run.shape.layers, left_out=left_out)

    def finish(self) -> float | None:
        """Search on the selection rows; the model gets the best lengths that meet the target.

        Measured lengths are remembered: draws are seeded, so that an interrupted search passes over them again."""
        target, rounds = self.target, self.config.search_rounds
        if target is None or rounds == 0:
            return None
        known = {tuple(row["lengths"]): _candidate(row) for row in self.run.recall() or []}
        own: Lengths = tuple(self.rule.counts.tolist())
        rates = [share * self.config.length_drop for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        start = {own, *(self._lengths(rate, shortest) for rate in rates)}
        self.run.progress.begin("search", total=rounds)

        def on_round(front: list[Candidate]) -> None:
            self.run.remember([_row(one) for one in known.values()])
            self.run.progress.step(metric=_choose(front, target).score)

        self._front = evolve(
            sorted(start),
            self._measure,
            known=known,
            longest=self._longest,
            rounds=rounds,
            draw=random.Random(self.config.seed),
            on_round=on_round,
        )
        chosen = _choose(self._front, target)
        self.rule.set_counts(chosen.lengths)
        self.run.progress.note(f"lengths {list(chosen.lengths)}: score {chosen.score:.4f} at {chosen.cost:.3f} FLOPs")
        return chosen.score

    def about(self) -> dict[str, Any]:
        return {"front": [_row(one) for one in self._front]} if self._front else {}

    def _measure(self, lengths: Lengths) -> Candidate:
        with self.rule.trying(lengths):
            found = self.run.evaluate()
        return Candidate(lengths, found["relative_flops"], found["score"])


def chosen_for(target: float, front: Sequence[dict[str, Any]]) -> Candidate:
    """The lengths for another target, from the front that a saved run carries."""
    return _choose([_candidate(row) for row in front], target)


def _row(one: Candidate) -> dict[str, Any]:
    return {"lengths": list(one.lengths), "cost": one.cost, "score": one.score}


def _candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(tuple(row["lengths"]), row["cost"], row["score"])


def _choose(front: list[Candidate], target: float) -> Candidate:
    return max(front, key=lambda one: fitness(one, target))


def fitness(one: Candidate, target: float) -> tuple[bool, float]:
    """To compare by: the best that meets the target, or the cheapest where none does."""
    fits = one.cost <= target + SLACK
    return fits, one.score if fits else -one.cost
