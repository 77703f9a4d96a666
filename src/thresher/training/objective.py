"""The loss of one micro-batch in each stage."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thresher.config import TrainConfig
from thresher.core.cost import EncoderShape, relative_flops
from thresher.core.losses import (
    NOT_COUNTED,
    budget_term,
    distillation_loss,
    hidden_distillation_loss,
    keep_regulariser,
    task_loss,
)
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.models.heads import outputs_in


@dataclass(frozen=True)
class Loss:
    """total is what is minimised; where something is pruned, flops are the relative FLOPs of the batch, and kept the
    share of tokens that every layer leaves, protected ones not counted: (layers,)."""

    total: Tensor
    flops: Tensor | None = None
    kept: Tensor | None = None

    def measured(self) -> Tensor:
        """All of it in one tensor, so that the host waits once."""
        parts = [self.total.reshape(1)]
        parts += [part.reshape(-1) for part in (self.flops, self.kept) if part is not None]
        return torch.cat([part.detach().float() for part in parts])


# Parts add up, and each is done with before the next is computed, so that memory holds the activations of one.
Losses = Loss | Iterator[Loss]


def expected_kept(trace: Trace) -> Tensor:
    """(batch, layers) expected tokens left by each layer: a token survives a layer if it survives all gates so far."""
    whole = trace.alive[0].to(trace.gates[0].dtype)
    alive, counts = whole, []
    for layer, gate in enumerate(trace.gates):
        alive = whole if layer >= trace.whole_from else alive * gate
        counts.append(alive.sum(dim=-1))
    return torch.stack(counts, dim=-1)


def finetune_loss(model: nn.Module, batch: dict[str, Tensor], *, means: str | None = None) -> Loss:
    """`means`, here and below: what outputs are (`core.heads`); not given, it follows from their number."""
    logits = outputs_in(model(**model_inputs(batch)))
    return Loss(total=task_loss(logits, batch["labels"], means=means, alive=batch["attention_mask"].bool()))


def soft_loss(
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    config: TrainConfig,
    shape: EncoderShape,
    means: str | None = None,
    price: Tensor | None = None,
) -> Loss:
    """Task loss plus the price of keeping tokens: the paper's L1 term, or the distance to the FLOPs target, squared or
    at a given `price` for each unit."""
    logits = outputs_in(model(**model_inputs(batch)))
    trace = gates_of(model).trace
    assert trace is not None  # the forward pass above leaves one
    flops = relative_flops(shape, trace.lengths(), expected_kept(trace))
    total = taught_loss(logits, batch, config=config, means=means)
    if config.lambda_ is not None:
        total = total + config.lambda_ * keep_regulariser(
            trace.gates[: trace.whole_from], alive=trace.alive[0], protected=trace.protected
        )
    if config.target_flops is not None and price is not None:
        total = total + price * (flops - config.target_flops)
    elif config.target_flops is not None:
        total = total + config.budget_weight * budget_term(flops, config.target_flops)
    return Loss(total=total, flops=flops.detach())


def hard_loss(
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    config: TrainConfig,
    shape: EncoderShape,
    teacher: nn.Module | None,
    means: str | None = None,
) -> Loss:
    """Task loss at fixed decisions, mixed with distillation from the dense teacher. What is kept is told of rows with
    labels, if only some have any: the target is meant for rows like these."""
    outputs = model(**model_inputs(batch), output_hidden_states=teacher is not None)
    trace = gates_of(model).trace
    assert trace is not None  # the forward pass above leaves one
    total = taught_loss(outputs_in(outputs), batch, config=config, means=means)
    if teacher is not None:
        with torch.no_grad():
            wanted = teacher(**model_inputs(batch), output_hidden_states=True).hidden_states
        states = hidden_distillation_loss(
            outputs.hidden_states,
            wanted,
            which=config.distill_states,
            layers=config.distill_layers,
            alive=trace.alive[0],
            kept=trace.outputs_at(),
        )
        total = total + config.distill_hidden * states
    own = labelled_rows(batch) or None
    flops = relative_flops(shape, trace.lengths()[:own], trace.kept()[:own])
    return Loss(total=total, flops=flops, kept=trace.kept_shares(own))


def taught_loss(logits: Tensor, batch: dict[str, Tensor], *, config: TrainConfig, means: str | None = None) -> Tensor:
    """Task loss, mixed with the distance to the dense teacher's predictions where the batch has them; rows without
    labels, which come last, learn from the teacher alone. Of tags, only tokens whose label counts are taught, where
    there are labels."""
    alive, temperature = batch["attention_mask"].bool(), config.distill_temperature
    rows, own = len(logits), labelled_rows(batch)
    if own in (0, rows):
        return _taught_alike(logits, batch, alive=alive, config=config, means=means)
    first = {"labels": batch["labels"], "targets": batch["targets"][:own]}
    loss = _taught_alike(logits[:own], first, alive=alive[:own], config=config, means=means)
    more = distillation_loss(logits[own:], batch["targets"][own:], temperature=temperature, means=means)
    return (own * loss + (rows - own) * more) / rows


def labelled_rows(batch: dict[str, Tensor]) -> int:
    """How many of the batch's rows have labels: its first ones."""
    return len(batch["labels"]) if "labels" in batch else 0


def _taught_alike(
    logits: Tensor, batch: dict[str, Tensor], *, alive: Tensor, config: TrainConfig, means: str | None
) -> Tensor:
    """Of rows that all have labels, or none."""
    temperature = config.distill_temperature
    if "labels" not in batch:
        return distillation_loss(logits, batch["targets"], temperature=temperature, means=means, alive=alive)
    loss = task_loss(logits, batch["labels"], means=means, alive=alive)
    if "targets" not in batch:
        return loss
    counted = batch["labels"] != NOT_COUNTED if means == "tags" else alive
    soft = distillation_loss(logits, batch["targets"], temperature=temperature, means=means, alive=counted)
    return (1 - config.distill) * loss + config.distill * soft


def model_inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of a batch that the model's forward pass takes."""
    return {name: value for name, value in batch.items() if name not in ("labels", "targets")}
