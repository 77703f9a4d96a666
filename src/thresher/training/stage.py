"""One training stage: batches, learning-rate schedule, accumulation, data parallelism, evaluations on the way."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from thresher.config import TrainConfig
from thresher.errors import PredictionError
from thresher.tasks.batches import batches
from thresher.tasks.encode import Encoded, collate
from thresher.training.objective import Losses
from thresher.training.optimizer import set_rate
from thresher.training.progress import Silent
from thresher.training.step import Recorded, Step
from thresher.training.targets import Targets

PAD_TO = 16  # tokens; every length of batch is recorded once
TOO_MANY = 0.1  # of a stage's steps that change nothing


@dataclass(frozen=True)
class StagePlan:
    """What a stage does. `before_step(progress)` runs before every optimizer step, and after it
    `after_step(step, flops, kept)`, kept being the share of tokens that every layer left. `targets` are the
    teacher's; batches carry those of their rows. Every batch ends with so many of the rows `more`, which have no labels
    and come after the others in `targets`. `recordable`: nothing but tensors changes from step to step."""

    name: str
    steps: int
    loss: Callable[[nn.Module, dict[str, Tensor]], Losses]
    before_step: Callable[[float], None] = lambda progress: None
    after_step: Callable[[int, float | None, list[float]], None] = lambda step, flops, kept: None
    targets: Targets | None = None
    more: Sequence[Encoded] = ()
    more_in_batch: int = 0
    recordable: bool = True


@dataclass(frozen=True)
class LoopSettings:
    """The part of the configuration that every stage shares."""

    batch_size: int
    accumulate: int
    warmup: float
    clip: float
    max_steps: int | None
    bf16: bool
    seed: int
    dropout: bool
    record: bool = False  # steps as CUDA graphs

    @classmethod
    def of(cls, config: TrainConfig, *, bf16: bool, labelled: bool) -> "LoopSettings":
        known = {"bf16": bf16, "dropout": labelled if config.dropout is None else config.dropout}
        own = {item.name: getattr(config, item.name) for item in fields(cls) if item.name not in known}
        return cls(**own, **known)


def total_steps(rows: int, epochs: float, settings: LoopSettings) -> int:
    """Optimizer steps of a stage; a data set smaller than one batch still makes one step an epoch."""
    steps = math.ceil(epochs * max(1, rows // settings.batch_size))
    return min(steps, settings.max_steps) if settings.max_steps is not None else steps


def run_stage(
    plan: StagePlan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Encoded],
    *,
    pad_id: int,
    settings: LoopSettings,
    accelerator: Accelerator,
    progress: Silent,
    start: int,
    checkpoints: set[int],
    on_checkpoint: Callable[[int], float | None],
    after_step: Callable[[int, float | None], None],
    passed_over: Tensor,
) -> None:
    """Train from optimizer step `start` to the end, calling `on_checkpoint` after the steps named in `checkpoints`,
    and `after_step`, with what that returned, when all that belongs to a step is done.

    `passed_over`, a number on the device, grows with every step whose gradients are not finite.
    """
    steps = plan.steps
    if start >= steps:
        return
    world, rank, device = accelerator.num_processes, accelerator.process_index, accelerator.device
    wrapped = accelerator.prepare_model(model.train(settings.dropout))
    step_now = Step(
        plan.loss, wrapped, optimizer, accelerator, clip=settings.clip, bf16=settings.bf16, passed_over=passed_over
    )
    recorded = settings.record and plan.recordable and device.type == "cuda" and world * settings.accumulate == 1
    take_step = Recorded(step_now) if recorded else step_now
    everything = [*rows, *plan.more]

    def batch_of(chosen: list[int]) -> dict[str, Tensor]:
        batch = collate([everything[i] for i in chosen], pad_id=pad_id, pad_to=PAD_TO if recorded else 1)
        if plan.targets is not None:
            batch["targets"] = plan.targets.of(chosen, tokens=batch["input_ids"].shape[1])
        return {name: value.to(device) for name, value in batch.items()}

    rates = [float(group["lr"]) for group in optimizer.param_groups]
    progress.begin(plan.name, total=steps, done=start)
    for step, chosen, more in _plan_batches(plan, rows, start=start, settings=settings):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            set_rate(group, rate * _schedule(step, steps, settings.warmup))
        torch.manual_seed(_seed_for(settings.seed, plan.name, step, rank))
        plan.before_step(step / steps)
        whole, pieces = len(chosen) + len(more), world * settings.accumulate
        each = [a + b for a, b in zip(_shares(chosen, pieces), _shares(more, pieces), strict=True)]
        mine = each[rank * settings.accumulate : (rank + 1) * settings.accumulate]
        # Gradients are averaged over processes; the weight turns that into a mean over the whole batch.
        parts = [(batch_of(micro), len(micro) * world / whole) for micro in mine]
        loss, *rest = accelerator.reduce(take_step(parts), reduction="mean").tolist()
        flops, kept = (rest[0], rest[1:]) if rest else (None, [])
        plan.after_step(step, flops, kept)
        metric = on_checkpoint(step + 1) if step + 1 in checkpoints else None
        model.train(settings.dropout)
        progress.step(loss=loss, flops=flops, metric=metric)
        after_step(step + 1, metric)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        set_rate(group, rate)


def check_passed_over(passed_over: int, stage: str, *, steps: int) -> None:
    """Of so many steps until now: one in thousands is an accident, a tenth of them is no training."""
    if passed_over > max(1, TOO_MANY * steps):
        raise PredictionError(
            f"{passed_over} of {steps} steps of the {stage} stage had gradients that are not finite; "
            "train with a lower learning rate, or with --precision fp32"
        )


def _step_batches(
    rows: Sequence[Encoded], steps: int, *, start: int, settings: LoopSettings
) -> Iterator[tuple[int, list[int]]]:
    """Whole batches in a fixed order that depends on (seed, epoch) only, from step `start` on."""
    lengths = [len(row.input_ids) for row in rows]
    size = min(settings.batch_size, len(rows))
    step, epoch = 0, 0
    while step < steps:
        for batch in batches(lengths, batch_size=size, seed=settings.seed, epoch=epoch):
            if step >= steps:
                return
            if step >= start:
                yield step, batch
            step += 1
        epoch += 1


def _plan_batches(
    plan: StagePlan, rows: Sequence[Encoded], *, start: int, settings: LoopSettings
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Every step's batch, and the rows without labels that come on top of it, numbered after `rows`."""
    own = _step_batches(rows, plan.steps, start=start, settings=settings)
    if not plan.more_in_batch:
        yield from ((step, chosen, []) for step, chosen in own)
        return
    size = replace(settings, batch_size=plan.more_in_batch)
    beside = _step_batches(plan.more, plan.steps, start=start, settings=size)
    for (step, chosen), (_, more) in zip(own, beside, strict=True):
        yield step, chosen, [len(rows) + row for row in more]


def _shares(items: list[int], parts: int) -> list[list[int]]:
    """Split into `parts` runs whose sizes differ by at most one."""
    return [items[len(items) * i // parts : len(items) * (i + 1) // parts] for i in range(parts)]


def _schedule(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then linear decay to zero."""
    rising = max(1, round(steps * warmup))
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (steps - step) / max(1, steps - rising))


def _seed_for(seed: int, stage: str, step: int, rank: int) -> int:
    digest = hashlib.sha256(f"{seed} {stage} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
