"""The paper's three steps as one object: soft stage, thresholds fixed, hard stage; before them a head if need be."""

import functools
import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
from torch import Tensor, nn

from thresher.config import TrainConfig
from thresher.core.cost import relative_flops
from thresher.errors import ConfigError, DataError, RunError
from thresher.hardware import choose_precision
from thresher.models.attach import encoder_shape, gates_of, name_classes_, weights_without_gates
from thresher.models.predict import Predictions, predict
from thresher.tasks.encode import EncodedSet, encode, padded_batches, usable_positions
from thresher.tasks.task import Task
from thresher.training.budget import (
    SEARCH_STEPS,
    Controller,
    GateScaler,
    check_reachable,
    measured_flops,
    scale_to_target,
)
from thresher.training.objective import Loss, finetune_loss, hard_loss, soft_loss
from thresher.training.optimizer import make_optimizer
from thresher.training.progress import Silent
from thresher.training.snapshot import optimizer_tensors, read_snapshot, restore_optimizer, write_snapshot
from thresher.training.stage import LoopSettings, StagePlan, run_stage, total_steps

CALIBRATION_ROWS = 384
STAGES = ("finetune", "soft", "hard")


@dataclass
class Standing:
    """Where training stands, as saved in every snapshot: the stage and step to go on from, and what was seen so far.

    `best_score` is of the current stage's best checkpoint on the selection split; `history` one row per evaluation.
    """

    stage: str = STAGES[0]
    step: int = 0
    best_score: float | None = None
    best_fits: bool = False
    dense: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class Trainer:
    """Teaches a model with gates (see `prune_`) which tokens to drop.

    `fit` leaves the best checkpoint in the model, gates in hard mode. With `work`, the state is saved there at every
    evaluation, and `resume=True` goes on from it. `finetune=True` trains the dense model first.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        task: Task,
        config: TrainConfig | None = None,
        *,
        finetune: bool = False,
        work: Path | None = None,
        resume: bool = False,
        progress: Silent | None = None,
        device: str | None = None,
    ) -> None:
        self.model, self.task, self.config = model, task, config or TrainConfig()
        self.finetune, self.work = finetune, work
        self.gates, self.shape = gates_of(model), encoder_shape(model)
        if model.config.num_labels != task.spec.num_labels:
            raise DataError(
                f"the model has {model.config.num_labels} outputs, but task {task.spec.name} needs "
                f"{task.spec.num_labels}; load it with num_labels={task.spec.num_labels}"
            )
        name_classes_(model, task.spec.labels)
        for name, rows in (("train", task.train), ("selection", task.selection)):
            if not rows:
                raise DataError(f"task {task.spec.name} has no rows in its {name} split; training needs both")
        self.train_set = self._encode(tokenizer, task.train)
        self.selection_set = self._encode(tokenizer, task.selection)
        self.pad_id: int = tokenizer.pad_token_id
        self._ramp = self.gates.thresholds.detach().cpu().clone()
        if self.config.target_flops is not None:
            lengths = torch.tensor(self.train_set.lengths)
            check_reachable(self.shape, lengths, self._ramp.tolist(), self.config.target_flops)
        self.accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no")
        parts = self.accelerator.num_processes * self.config.accumulate
        if min(self.config.batch_size, len(self.train_set.rows)) < parts:
            raise ConfigError(
                f"batch_size = {self.config.batch_size} and {len(self.train_set.rows)} training rows cannot be split "
                f"into {self.accelerator.num_processes} processes x accumulate = {self.config.accumulate}"
            )
        self.progress = progress if progress is not None and self.accelerator.is_main_process else Silent()
        self.precision, _ = choose_precision(self.config.precision, self.accelerator.device.type)
        self.model.to(self.accelerator.device)
        self.standing = Standing(stage="finetune" if finetune else "soft")
        self._best: dict[str, Tensor] = {}
        self._teacher: dict[str, Tensor] = {}
        self._resumed: dict[str, dict[str, Tensor]] = {}
        self._began = time.monotonic()
        if resume:
            self._restore()

    def fit(self) -> Standing:
        """Run what is left of the three stages; afterwards the model holds the best pruned checkpoint."""
        with self.progress:
            if self.standing.stage == "finetune":
                self._finetune()
            if not self._teacher:
                self._fix_teacher()
            self.teacher_logits = self._predict_teacher()
            if self.standing.stage == "soft":
                self._soft()
            self._hard()
        self.model.eval()
        self.gates.about = {"task": self.task.describe(), "recipe": self.config.to_dict()}
        self.standing.seconds = self._seconds()
        return self.standing

    def dense_weights(self) -> dict[str, Tensor]:
        """The dense fine-tuned model that the pruned one started from, on the CPU, gates left out."""
        return self._teacher

    # ---- stages

    def _finetune(self) -> None:
        self.gates.set_mode("off")
        self._run(StagePlan(name="finetune", epochs=self.config.finetune_epochs, loss=finetune_loss), lr=self.config.lr)
        self._restore_best()
        self._next_stage("soft")

    def _fix_teacher(self) -> None:
        """What the model is now, dense, is the teacher and the baseline."""
        self._teacher = {
            name: value.detach().cpu().clone() for name, value in weights_without_gates(self.model).items()
        }
        self.standing.dense = self._evaluate(pruned=False)
        self._say(f"dense: selection score {self.standing.dense['score']:.4f}")

    def _soft(self) -> None:
        config = self.config
        if self.standing.step == 0 and config.target_flops is not None:
            self._meet_target(config.target_flops)
        self.gates.set_mode("soft", soft_mask=config.soft_mask)

        def anneal(progress: float) -> None:
            self.gates.temperature = config.temperature * (config.final_temperature / config.temperature) ** progress

        def keep_in_range(step: int, flops: float | None) -> None:
            if config.target_flops is not None:  # below zero a threshold means nothing, and scaling it would invert it
                with torch.no_grad():
                    self.gates.thresholds.clamp_(min=0.0)

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Loss:
            return soft_loss(model, batch, config=config, shape=self.shape)

        plan = StagePlan(
            name="soft", epochs=config.soft_epochs, loss=loss, before_step=anneal, after_step=keep_in_range
        )
        self._run(plan, lr=config.lr)
        self._next_stage("hard")

    def _hard(self) -> None:
        config = self.config
        self.gates.set_mode("hard")
        if self.standing.step == 0 and config.target_flops is not None:
            self._meet_target(config.target_flops)
        steps = total_steps(len(self.train_set.rows), config.hard_epochs, self._loop_settings())
        controller = (
            Controller(self.model, target=config.target_flops, total_steps=steps)
            if config.target_flops is not None
            else None
        )
        teacher = self._teacher_model() if config.distill_hidden > 0 else None

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Loss:
            wanted = self.teacher_logits[batch["rows"]].to(self.accelerator.device) if config.distill > 0 else None
            return hard_loss(model, batch, config=config, shape=self.shape, teacher_logits=wanted, teacher=teacher)

        def hold_target(step: int, flops: float | None) -> None:
            if controller is not None and flops is not None:
                controller.update(step, flops)

        plan = StagePlan(name="hard", epochs=config.hard_epochs, loss=loss, after_step=hold_target)
        self._run(plan, lr=config.hard_lr or config.lr)
        if not self._best:  # no steps asked for: the thresholds as they are
            self._consider(self._evaluate(pruned=True))
        self._restore_best()

    # ---- one stage, with evaluations and snapshots on the way

    def _run(self, plan: StagePlan, *, lr: float) -> None:
        settings, pruned = self._loop_settings(), plan.name != "finetune"
        optimizer = make_optimizer(self.model, self.config, lr=lr, learn_thresholds=plan.name == "soft")
        if "optimizer" in self._resumed:
            restore_optimizer(self.model, optimizer, self._resumed.pop("optimizer"))
        steps = total_steps(len(self.train_set.rows), plan.epochs, settings)
        evaluations = self.config.evals_per_stage

        def checkpoint(step: int) -> float:
            found = self._evaluate(pruned=pruned)
            self.standing.history.append({"stage": plan.name, "step": step, **found})
            self.standing.step = step
            if plan.name != "soft":  # the soft stage ends where it ends: its thresholds change until the last step
                self._consider(found)
            self._snapshot(optimizer)
            return found["score"]

        run_stage(
            plan,
            self.model,
            optimizer,
            self.train_set.rows,
            pad_id=self.pad_id,
            settings=settings,
            accelerator=self.accelerator,
            progress=self.progress,
            start=self.standing.step,
            checkpoints={max(1, steps * i // evaluations) for i in range(1, evaluations + 1)},
            on_checkpoint=checkpoint,
        )

    def _consider(self, found: dict[str, float]) -> None:
        """Keep this checkpoint if it is the best so far; one within the FLOPs target always beats one that is not."""
        target = self.config.target_flops
        fits = target is None or "relative_flops" not in found or found["relative_flops"] <= target + 0.01
        standing = self.standing
        better = standing.best_score is None or (fits, found["score"]) >= (standing.best_fits, standing.best_score)
        if better:
            standing.best_score, standing.best_fits = found["score"], fits
            self._best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def _restore_best(self) -> None:
        if self._best:
            self.model.load_state_dict(self._best)

    def _next_stage(self, name: str) -> None:
        self.standing.stage, self.standing.step = name, 0
        self.standing.best_score, self.standing.best_fits = None, False
        self._best = {}

    def _meet_target(self, target: float) -> None:
        """Scale all thresholds so that hard pruning costs what was asked for."""
        rows = self.train_set.rows
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.config.seed))[:CALIBRATION_ROWS]
        sample = EncodedSet([rows[i] for i in chosen.tolist()], 0, self.train_set.max_length)
        batches = padded_batches(sample, pad_id=self.pad_id)
        scaler = GateScaler(self.model, floor=0.01 * self._ramp)
        self.progress.begin("thresholds", total=SEARCH_STEPS)
        reached = scale_to_target(
            scaler,
            lambda: measured_flops(self.model, batches),
            target,
            lambda flops: self.progress.step(flops=flops),
        )
        # Processes must agree to the bit, and a GPU's sums need not.
        with torch.no_grad():
            self.gates.thresholds.copy_(broadcast(self.gates.thresholds.detach().clone()))
        self._say(f"thresholds scaled: relative FLOPs {reached:.3f} of {target} asked for")

    # ---- evaluation

    def _evaluate(self, *, pruned: bool) -> dict[str, float]:
        """Selection metrics, shared out over the processes; with relative FLOPs when pruned."""
        found = self._predict(self.selection_set, pruned=pruned)
        labels = np.array([row.label for row in self.selection_set.rows])
        scores = self.task.score(found.logits.numpy(), labels)
        if found.kept is not None:
            scores["relative_flops"] = float(relative_flops(self.shape, found.lengths, found.kept))
        return scores

    def _predict(self, data: EncodedSet, *, pruned: bool) -> Predictions:
        """Each process does its share of the batches; all get all predictions."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        mine = padded_batches(data, pad_id=self.pad_id)[rank::world]
        found = [predict(self.model, mine, pruned=pruned)] if mine else []
        return Predictions.merge(gather_object(found) if world > 1 else found)

    def _predict_teacher(self) -> Tensor:
        """(rows, outputs) logits of the dense teacher on the training rows: once, not once an epoch."""
        if self.config.distill == 0:
            return torch.empty(0)
        self.progress.begin("teacher", total=1)
        current = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self._teacher, strict=False)
        with torch.autocast(self.accelerator.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self._predict(self.train_set, pruned=False).logits
        self.model.load_state_dict(current)
        self.progress.step()
        return logits

    def _teacher_model(self) -> nn.Module:
        model: nn.Module = type(self.model)(self.model.config)
        model.load_state_dict(self._teacher)
        model.to(self.accelerator.device).eval().requires_grad_(False)
        return model

    # ---- interruption

    def _snapshot(self, optimizer: torch.optim.Optimizer) -> None:
        if self.work is None:
            return
        if self.accelerator.is_main_process:
            groups = {
                "model": self.model.state_dict(),
                "optimizer": optimizer_tensors(self.model, optimizer),
                "best": self._best,
                "teacher": self._teacher,
            }
            about = {"identity": self._identity, "standing": {**asdict(self.standing), "seconds": self._seconds()}}
            write_snapshot(self.work, groups, about)
        self.accelerator.wait_for_everyone()

    def _restore(self) -> None:
        if self.work is None:
            raise RunError("resume needs the work folder of the interrupted run")
        groups, about = read_snapshot(self.work)
        identity = self._identity
        changed = sorted(name for name, value in identity.items() if about.get("identity", {}).get(name) != value)
        if changed:
            raise RunError(
                f"the interrupted run had other settings for: {', '.join(changed)}; resume with the same ones"
            )
        self.standing = Standing(**about["standing"])
        self.model.load_state_dict(groups["model"])
        self._best, self._teacher = groups.get("best", {}), groups.get("teacher", {})
        self._resumed = {"optimizer": groups.get("optimizer", {})}
        self._say(f"resuming at stage {self.standing.stage}, step {self.standing.step}")

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that must be the same for a resumed run to be the run that was interrupted."""
        digest = hashlib.sha256()
        for data in (self.train_set, self.selection_set):
            for row in data.rows:
                digest.update(repr((row.input_ids, row.token_type_ids, row.label)).encode())
        return {
            **self.config.to_dict(),
            "prune settings": self.gates.config.to_dict(),
            "model": [self.model.config.model_type, *asdict(self.shape).values()],
            "finetune": self.finetune,
            "data": digest.hexdigest(),
        }

    def _seconds(self) -> float:
        return self.standing.seconds + time.monotonic() - self._began

    # ---- small things

    def _encode(self, tokenizer: Any, examples: Sequence[Any]) -> EncodedSet:
        positions = usable_positions(self.model.config)
        return encode(tokenizer, examples, max_length=self.config.max_length, positions=positions)

    def _loop_settings(self) -> LoopSettings:
        config = self.config
        return LoopSettings(
            batch_size=config.batch_size,
            accumulate=config.accumulate,
            warmup=config.warmup,
            clip=config.clip,
            max_steps=config.max_steps,
            bf16=self.precision == "bf16",
            seed=config.seed,
        )

    def _say(self, text: str) -> None:
        self.progress.note(text)
