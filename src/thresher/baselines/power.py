"""PoWER-BERT: how many tokens each layer keeps is learned, by multiplying the k-th best token by a number in [0, 1]."""

import math

import torch
from torch import Tensor, nn

from thresher.core.cost import relative_flops
from thresher.core.losses import budget_term
from thresher.core.ranks import places
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.models.heads import outputs_in
from thresher.models.rules import TopCount
from thresher.training.method import Method
from thresher.training.objective import Loss, model_inputs, taught_loss


class Retention(TopCount):
    """Soft: retention[l, k] multiplies the k-th best token after layer l. Hard: a fixed number of the best is kept."""

    def __init__(self, layers: int, positions: int) -> None:
        super().__init__([positions] * layers)
        self.retention = nn.Parameter(torch.ones(layers, positions), requires_grad=False)

    def soft(self, layer: int, scores: Tensor, trace: Trace) -> Tensor:
        alive, protected = trace.alive[0], trace.protected
        place = places(scores.detach(), alive=alive, protected=protected)
        gate = self.retention[layer][place.clamp(max=self.retention.shape[1] - 1)]
        return gate.masked_fill(protected, 1.0).masked_fill(~alive, 0.0)

    def take_counts(self, *, divided_by: float = 1.0) -> None:
        """Keep as many as the layer's retention adds up to, never more than the layer before."""
        counts, most = [], self.retention.shape[1]
        for mass in self.retention.detach().sum(dim=1).tolist():
            most = max(1, min(most, math.ceil(mass / divided_by)))
            counts.append(most)
        self.set_counts(counts)


class Power(Method):
    """A soft stage learns the retention, the hard stage trains at the counts it gives."""

    name = "power"
    adjusts = "counts"
    learns = True

    @property
    def soft_mask(self) -> str:
        return "plain"  # soft extraction multiplies outputs and leaves attention alone

    @property
    def rule(self) -> Retention:
        rule = self.gates.rule
        assert isinstance(rule, Retention)  # set in begin
        return rule

    def begin(self) -> None:
        self._begin_with(Retention(self.run.shape.layers, self.run.longest))

    def meet(self, target: float) -> float:
        return self._scale(self, target)

    def apply(self, factor: float) -> None:
        self.rule.take_counts(divided_by=factor)

    def soft_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Task loss plus the price of retention: the published L1, later layers dearer, or the distance to a target."""
        logits = outputs_in(model(**model_inputs(batch)))
        trace = gates_of(model).trace
        assert trace is not None  # the forward pass above leaves one
        kept = torch.stack([gate.sum(dim=-1) for gate in trace.gates], dim=-1)
        flops = relative_flops(self.run.shape, trace.lengths(), kept)
        total = taught_loss(logits, batch, config=self.config, means=self.run.means)
        if self.config.lambda_ is not None:
            depth = torch.arange(1, kept.shape[-1] + 1, device=kept.device)
            mass = kept.sum(dim=0) / trace.lengths().sum()
            total = total + self.config.lambda_ * (depth * mass).sum() / depth.sum()
        if self.config.target_flops is not None:
            total = total + self.config.budget_weight * budget_term(flops, self.config.target_flops)
        return Loss(total=total, flops=flops.detach())

    def after_soft_step(self, flops: float | None) -> None:
        with torch.no_grad():
            self.rule.retention.clamp_(0.0, 1.0)
        self.rule.take_counts()
