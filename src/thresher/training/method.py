"""What a training run does between the dense model and the pruned one. Rival methods are in `thresher.baselines`."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from thresher.config import TrainConfig
from thresher.core.cost import EncoderShape
from thresher.errors import ConfigError
from thresher.models.attach import gates_of
from thresher.models.rules import Rule
from thresher.training.budget import GateScaler, Scaler, check_reachable, nudge, resting_from, scale_to_target
from thresher.training.falling import FallingShares
from thresher.training.objective import Loss, Losses, hard_loss, soft_loss
from thresher.training.progress import Silent

FALLING = "falling"  # the ramp that is fitted before the soft stage
FALL_WIDTH = 3.0  # layers of 12
FALL_FLOOR = 0.1  # of the target: an infinite threshold would learn nothing


@dataclass(frozen=True)
class Run:
    """What a method may use of a training run."""

    model: Any
    config: TrainConfig
    shape: EncoderShape
    lengths: Tensor  # (rows,) tokens of each selection row
    protected: Tensor  # (rows,) how many of them always stay, at least one
    longest: int  # tokens of any training or selection row
    progress: Silent
    cost: Callable[[], float]  # relative FLOPs of hard pruning, measured on some of the selection rows
    training_cost: Callable[[], float]  # the same of some training rows
    evaluate: Callable[[], dict[str, float]]  # score and relative FLOPs of hard pruning on the selection rows
    divergence: Callable[[], float]  # of hard pruning from the dense model, on the selection rows
    searched: Callable[[float], None]  # to be told the relative FLOPs of every step that `meet` makes
    recall: Callable[[], Any]  # what was remembered before an interruption; None if nothing was
    remember: Callable[[Any], None]  # something that JSON can write, for a run that is interrupted
    means: str  # what outputs are: one of core.heads.MEANINGS


class Method:
    """One way to choose tokens. As it stands: no rule, no soft stage, and a hard stage with distillation.

    A method changes the gates and nothing else of the model; what it must remember lies in the gates, so that an
    interrupted run goes on. `finish` may change the decisions of the best checkpoint once more.
    """

    name: ClassVar[str]
    adjusts: ClassVar[str] = "thresholds"  # what `meet` sets
    searches: int = 1  # that `meet` makes for it
    learns: ClassVar[bool] = False  # in a soft stage; without one, its steps go to the hard stage
    prunes: ClassVar[bool] = True
    recordable: ClassVar[bool] = True  # the hard stage's steps differ in nothing but tensors
    long_finish: ClassVar[bool] = False  # worth saving the state before it

    def __init__(self, run: Run) -> None:
        self.run, self.config, self.gates = run, run.config, gates_of(run.model)
        self.begin()

    @property
    def target(self) -> float | None:
        return self.config.target_flops if self.prunes else None

    @property
    def soft_mask(self) -> str:
        return self.config.soft_mask

    def begin(self) -> None:
        """Give the gates their rule, and refuse a target that cannot be reached."""
        self.gates.rule = None

    def _begin_with(self, rule: Rule, *, pruning: Sequence[float] | None = None, **words: str) -> None:
        """Let a rule decide, in all layers or in those where `pruning` is positive."""
        layers = self.run.shape.layers
        self.gates.rule = rule
        self.gates.set_thresholds([0.0] * layers)
        self._check_target(pruning or [1.0] * layers, **words)

    def _check_target(self, pruning: Sequence[float], **words: Any) -> None:
        """Refuse a target that cannot be reached by dropping in the layers where `pruning` is positive."""
        run = self.run
        if self.target is not None:
            words |= {"protected": run.protected, "rejoin": self.gates.config.rejoined}
            check_reachable(run.shape, run.lengths, pruning, self.target, **words)

    def meet(self, target: float) -> float:
        """Adjust one number until hard pruning costs `target`; returns the relative FLOPs that were reached."""
        raise NotImplementedError

    def before_soft_step(self, progress: float) -> None:
        """`progress` goes from 0 to 1."""

    def soft_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        raise NotImplementedError

    def after_soft_step(self, flops: float | None) -> None:
        """What was learned may have left its range. `flops`: what the step's rows cost, relative to dense."""

    def before_hard_step(self, progress: float) -> None:
        """Chance is seeded for the step. A recorded step sees what is put into tensors here."""

    def hard_loss(self, model: nn.Module, batch: dict[str, Tensor], *, teacher: nn.Module | None) -> Losses:
        run = self.run
        return hard_loss(model, batch, config=self.config, shape=run.shape, teacher=teacher, means=run.means)

    def after_hard_step(self, step: int, *, steps: int, flops: float | None, kept: list[float]) -> None:
        """Hold the target while the weights change."""

    def refit(self) -> None:
        """The weights are others than those of the last step: let the decisions cost what was asked for again."""

    def finish(self) -> float | None:
        """Called with the best checkpoint in the model. A method that then chooses once more returns the new score."""
        return None

    def about(self) -> dict[str, Any]:
        """What else belongs into the saved run's description."""
        return {}

    def _scale(self, scaler: Scaler, target: float, *, shown: bool = True) -> float:
        """`shown` as steps of progress; not so in the middle of a stage, whose steps are others."""
        told = self.run.searched if shown else lambda flops: None
        return scale_to_target(scaler, self.run.cost, target, told)


class Settled(Method):
    """Decisions stay as the gates make them; only weights are trained on. No method to choose by name."""

    name = "settled"
    prunes = False  # to no target: there is nothing to be met

    def begin(self) -> None:
        """The gates keep their rule and their thresholds."""


class Thresholds(Method):
    """Thresholds that only scaling changes: one multiplier, searched for before the hard stage and held in it."""

    name = "thresholds"

    def begin(self) -> None:
        super().begin()
        self._ramp = self.gates.thresholds.detach().cpu().clone()
        self._check_target(self._ramp.tolist())

    def meet(self, target: float, *, shown: bool = True) -> float:
        return self._scale(GateScaler(self.run.model, floor=0.01 * self._ramp), target, shown=shown)

    def after_hard_step(self, step: int, *, steps: int, flops: float | None, kept: list[float]) -> None:
        if self.target is None or flops is None:
            return
        if step < resting_from(steps):
            nudge(self.run.model, measured=flops, target=self.target + self._surplus)
        elif step == resting_from(steps):
            # Until now thresholds followed what training rows cost, under dropout; what counts is what others will.
            self.meet(self.target, shown=False)

    def refit(self) -> None:
        if self.target is not None:
            self.meet(self.target, shown=False)

    @functools.cached_property
    def _surplus(self) -> float:
        """By how much training rows cost more than those that the target is meant for, at the first thresholds."""
        surplus: float | None = self.run.recall()
        if surplus is None:
            surplus = self.run.training_cost() - self.run.cost()
            self.run.remember(surplus)
        return surplus


class Ltp(Thresholds):
    """The paper's: a soft stage learns the thresholds together with the weights."""

    name = "ltp"
    learns = True

    def begin(self) -> None:
        super().begin()
        if self.gates.config.ramp == FALLING and self.target is None:
            raise ConfigError(f"ramp = '{FALLING}' is fitted to a FLOPs target; give target_flops, or another ramp")
        if self.config.dual_rate > 0 and self.target is None:
            raise ConfigError(
                f"dual_rate = {self.config.dual_rate} finds the price of FLOPs that lambda_ = {self.config.lambda_} "
                "sets; give dual_rate with target_flops, or lambda_ alone"
            )
        priced = self.config.dual_rate > 0  # an interrupted run finds its price again; another run's is left behind
        self.gates.price = torch.zeros((), device=self.gates.thresholds.device) if priced else None

    @property
    def price(self) -> Tensor | None:
        """Of a unit of relative FLOPs: a multiplier that rises while they are above the target, if there is one."""
        return self.gates.price

    def meet(self, target: float, *, shown: bool = True) -> float:
        if self.gates.config.ramp != FALLING or self.gates.mode != "soft":
            return super().meet(target, shown=shown)
        layers = self.run.shape.layers
        start = FallingShares(
            self.gates, width=max(1.0, FALL_WIDTH * layers / 12), centre=target * layers, floor=FALL_FLOOR * target
        )
        reached = self._scale(start, target, shown=shown)
        self.gates.rule = None
        self.gates.set_thresholds(start.fitted.thresholds())
        return reached

    def before_soft_step(self, progress: float) -> None:
        config = self.config
        self.gates.temperature = config.temperature * (config.final_temperature / config.temperature) ** progress

    def soft_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        return soft_loss(model, batch, config=self.config, shape=self.run.shape, means=self.run.means, price=self.price)

    def finish(self) -> float | None:
        self.gates.price = None
        return super().finish()

    def after_soft_step(self, flops: float | None) -> None:
        if self.price is not None and flops is not None and self.target is not None:
            self.price.add_(self.config.dual_rate * (flops - self.target)).clamp_(min=0.0)
        if self.target is not None:  # below zero a threshold means nothing, and scaling it would invert it
            with torch.no_grad():
                self.gates.thresholds.clamp_(min=0.0)
