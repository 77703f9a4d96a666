"""The paper's three steps as one object: soft stage, thresholds fixed, hard stage; before them a head if need be.

Which tokens are dropped, and what is learned for it, is the method's affair (`training.method`).
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, broadcast_object_list
from torch import Tensor

from thresher.config import TrainConfig
from thresher.core.heads import OF_TOKENS
from thresher.errors import RunError
from thresher.hardware import choose_precision
from thresher.interruption import interruptions
from thresher.models.attach import encoder_shape, gates_of
from thresher.models.classes import name_classes_
from thresher.models.defaults import divide_as_trained_, mean_by_
from thresher.tasks.encode import EncodedSet, padded_batches
from thresher.tasks.task import Task
from thresher.training.average import Average
from thresher.training.budget import SEARCH_STEPS, SLACK, measured_flops
from thresher.training.checks import check_given, check_parts
from thresher.training.guide import Guide, Stopped
from thresher.training.judge import Judge, doubts
from thresher.training.method import Method, Run, Settled
from thresher.training.objective import finetune_loss
from thresher.training.optimizer import make_optimizer
from thresher.training.progress import Silent, steps_of
from thresher.training.sample import cost_sample, protected_counts, read_rows
from thresher.training.snapshot import Memory, optimizer_tensors, read_snapshot, restore_optimizer, write_snapshot
from thresher.training.stage import LoopSettings, StagePlan, check_passed_over, run_stage, total_steps
from thresher.training.state import TrainingState, changed_settings, identity_of
from thresher.training.targets import Targets
from thresher.training.teacher import Teacher


class Trainer:
    """Teaches a model with gates (see `prune_`) which tokens to drop.

    `fit` leaves the best checkpoint in the model, gates in hard mode. With `work`, the state is saved there at
    evaluations, at least `save_seconds` apart, and on Ctrl-C or SIGTERM; `resume=True` goes on from it.
    `finetune=True` trains the dense model first. `config.method` says how tokens are chosen, and by what they are
    judged where `PruneConfig` leaves it open; `method` gives the class of that name. With a `teacher`, weights of the
    dense model, the hard stage alone trains a pruned model on, whose decisions stay. A `guide` may end it (`Stopped`).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        task: Task,
        config: TrainConfig | None = None,
        *,
        method: type[Method] | None = None,
        finetune: bool = False,
        teacher: dict[str, Tensor] | None = None,
        work: Path | None = None,
        resume: bool = False,
        progress: Silent | None = None,
        guide: Guide | None = None,
        device: str | None = None,
    ) -> None:
        self.model, self.task, self.config = model, task, config or TrainConfig()
        self.finetune, self.work, self.guide = finetune, work, guide or Guide()
        self.gates, self.shape = gates_of(model), encoder_shape(model)
        method = check_given(model, task, self.config, method, finetune=finetune)
        self.gates.settle(method.name)
        mean_by_(model, task.spec.means)
        divide_as_trained_(model, tags_words=any(row.words for row in task.train))
        name_classes_(model, task.spec.labels, anew=finetune or task.spec.class_order == "user")
        self.rows = read_rows(model, tokenizer, task, max_length=self.config.max_length)
        self.labelled, self.pad_id = self.rows.train.rows[0].label is not None, int(tokenizer.pad_token_id)
        self.accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no")
        check_parts(self.config, rows=len(self.rows.train.rows), processes=self.accelerator.num_processes)
        self.progress = progress if progress is not None and self.accelerator.is_main_process else Silent()
        self.precision, _ = choose_precision(self.config.precision, self.accelerator.device.type)
        bf16 = self.precision == "bf16"
        self.judge = Judge(model, self.accelerator, task, self.rows.selection, pad_id=self.pad_id, bf16=bf16)
        self.teacher = Teacher(model, self.judge, dict(teacher or {}))
        memory = Memory(work, resuming=resume, writes=self.accelerator.is_main_process)
        self.method = (method if teacher is None else Settled)(self._run_for_method(memory))
        self.model.to(self.accelerator.device)
        self._first_stage = "soft" if self.method.learns else "hard"
        self.state = TrainingState(stage="finetune" if finetune else self._first_stage)
        self._best: dict[str, Tensor] = {}
        self._resumed: dict[str, dict[str, Tensor]] = {}
        self._average: Average | None = None
        self._began = self._saved = time.monotonic()
        if resume:
            self._restore()

    def _run_for_method(self, memory: Memory) -> Run:
        mixed = self.gates.config.scale == "paper"

        def cost_on(data: EncodedSet) -> Callable[[], float]:
            batches = functools.cache(lambda: cost_sample(data, pad_id=self.pad_id, seed=self.config.seed, mixed=mixed))
            return lambda: measured_flops(self.model, batches())

        return Run(
            model=self.model,
            config=self.config,
            shape=self.shape,
            lengths=torch.tensor(self.rows.selection.lengths),
            protected=protected_counts(self.gates.config, self.judge.batches),
            longest=self.rows.longest,
            progress=self.progress,
            cost=cost_on(self.rows.selection),
            training_cost=cost_on(self.rows.train),
            evaluate=lambda: self.judge.evaluate(pruned=True),
            divergence=lambda: self.judge.divergence_from(self.teacher.on_selection),
            searched=self._searched,
            recall=memory.recall,
            remember=memory.remember,
            means=self.task.spec.means,
        )

    def fit(self) -> TrainingState:
        """Run what is left of the stages; afterwards the model holds the best pruned checkpoint."""
        with self.progress, self.gates.shortening():
            if self.state.stage == "finetune":
                self._finetune()
            if not self.teacher.weights:
                self._fix_teacher()
            elif not self.judge.labelled:
                self.judge.refer_to(self.teacher.on_selection)
            self.teacher_logits = self.guide.teacher_logits(self._predict_teacher)
            if self.state.stage == "soft":
                self._soft()
            self._hard()
        self.model.eval()
        self.gates.about = {"task": self.task.describe(), "recipe": self.config.to_dict(), **self.method.about()}
        self.state.seconds = self._seconds()
        return self.state

    def dense_weights(self) -> dict[str, Tensor]:
        """The dense fine-tuned model that the pruned one started from, on the CPU, gates left out."""
        return self.teacher.weights

    # ---- stages

    def _finetune(self) -> None:
        self.gates.set_mode("off")
        steps = self._steps(self.config.finetune_epochs)
        loss = functools.partial(finetune_loss, means=self.task.spec.means)
        self._run(StagePlan(name="finetune", steps=steps, loss=loss), lr=self.config.lr)
        self._restore_best()
        self._next_stage(self._first_stage)

    def _fix_teacher(self) -> None:
        """What the model is now, dense, is the teacher and the baseline."""
        self.teacher.fix()
        found = self.judge.predict(self.judge.batches, pruned=False, on_batch=steps_of(self.progress, "dense"))
        self.judge.refer_to(found.logits)
        self.state.dense = self.judge.score(found)
        for text in (
            f"dense: selection score {self.state.dense['score']:.4f}",
            *doubts(self.task, found.logits.numpy(), self.state.dense),
        ):
            self.progress.note(text)
        if first := self.guide.first_weights():
            self.model.load_state_dict({**self.model.state_dict(), **first})

    def _soft(self) -> None:
        method, config = self.method, self.config
        self.gates.set_mode("soft", soft_mask=method.soft_mask)
        self._meet_target()
        plan = StagePlan(
            name="soft",
            steps=self._steps(config.soft_epochs),
            loss=method.soft_loss,
            before_step=method.before_soft_step,
            targets=None if self.labelled else self._targets(),
            after_step=lambda step, flops, kept: method.after_soft_step(flops),
            recordable=False,  # its temperature falls
        )
        self._run(plan, lr=config.lr)
        self._next_stage("hard")

    def _hard(self) -> None:
        method, config, steps = self.method, self.config, self._hard_steps
        self.gates.set_mode("hard")
        self._meet_target()
        teacher = self.teacher.model() if config.distill_hidden > 0 else None

        def hold_target(step: int, flops: float | None, kept: list[float]) -> None:
            method.after_hard_step(step, steps=steps, flops=flops, kept=kept)
            self._agree_on_gates()
            if self._average is not None:
                self._average.add(step)

        plan = StagePlan(
            name="hard",
            steps=steps,
            loss=functools.partial(method.hard_loss, teacher=teacher),
            before_step=method.before_hard_step,
            after_step=hold_target,
            targets=self._targets() if len(self.teacher_logits) else None,
            more=self.rows.more.rows,
            more_in_batch=max(1, round(config.more_ratio * config.batch_size)) if self.rows.more.rows else 0,
            recordable=method.recordable,
        )
        self._run(plan, lr=config.hard_lr or config.lr)
        if not self._best:  # no steps asked for: the decisions as they are
            self._consider(self.judge.evaluate(pruned=True))
        self._restore_best()
        if (chosen := method.finish()) is not None:
            self.state.best_score = chosen

    # ---- one stage, with evaluations and snapshots on the way

    def _run(self, plan: StagePlan, *, lr: float) -> None:
        pruned = plan.name != "finetune"
        optimizer = make_optimizer(self.model, self.config, lr=lr, learn_thresholds=plan.name == "soft")
        if plan.name == "hard" and self.config.average > 0:  # the optimizer has settled what is trained
            self._average = Average(self.model, first_step=round((1 - self.config.average) * plan.steps))
            if "average" in self._resumed:
                self._average.restore(self._resumed.pop("average"))
        if "optimizer" in self._resumed:
            restore_optimizer(self.model, optimizer, self._resumed.pop("optimizer"))
        evaluations, state = self.config.evals_per_stage, self.state
        passed_over = torch.tensor(float(state.passed_over), device=self.accelerator.device)

        def checkpoint(step: int) -> float:
            state.passed_over = int(passed_over)
            check_passed_over(state.passed_over, plan.name, steps=step)
            with self._averaged():
                found = self.judge.evaluate(pruned=pruned)
                if plan.name != "soft":  # the soft stage ends where it ends: its thresholds change until the last step
                    self._consider(found)
            spoiled = {"passed_over": state.passed_over} if state.passed_over else {}
            state.history.append({"stage": plan.name, "step": step, **found, **spoiled})
            state.step = step
            more_to_come = plan.name != "hard" or self.method.long_finish
            self._snapshot(optimizer, certainly=step == plan.steps and more_to_come)
            return found["score"]

        def stop_if_told(step: int, score: float | None) -> None:
            if step < plan.steps:  # after the last there is nothing left to save
                self._ask_guide(score)
            if told():
                state.step, state.passed_over = step, int(passed_over)
                self._snapshot(optimizer, certainly=True)
                raise KeyboardInterrupt

        # Processes that share the work would be told, and stop, after different steps.
        saves_first = self.work is not None and self.accelerator.num_processes == 1
        with interruptions(at_once=not saves_first) as told:
            run_stage(
                plan,
                self.model,
                optimizer,
                self.rows.train.rows,
                pad_id=self.pad_id,
                settings=self._loop_settings(),
                accelerator=self.accelerator,
                progress=self.progress,
                start=state.step,
                checkpoints={max(1, plan.steps * i // evaluations) for i in range(1, evaluations + 1)},
                on_checkpoint=checkpoint,
                after_step=stop_if_told,
                passed_over=passed_over,
            )
        if state.passed_over:
            self.progress.note(
                f"{state.passed_over} of {plan.steps} steps were passed over: their gradients were not finite"
            )

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """What is judged, and may be kept, is the mean of the weights, once there is one."""
        if self._average is None or self._average.count == 0:
            yield
            return
        with self._average.in_place():
            self.method.refit()
            self._agree_on_gates()
            yield

    def _consider(self, found: dict[str, float]) -> None:
        """Keep this checkpoint if it is the best so far; one within the FLOPs target always beats one that is not."""
        target, state = self.method.target, self.state
        fits = target is None or "relative_flops" not in found or found["relative_flops"] <= target + SLACK
        if state.best_score is None or (fits, found["score"]) >= (state.best_fits, state.best_score):
            state.best_score, state.best_fits = found["score"], fits
            self._best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def _restore_best(self) -> None:
        if self._best:
            self.model.load_state_dict(self._best)

    def _next_stage(self, name: str) -> None:
        self.state.stage, self.state.step = name, 0
        self.state.best_score, self.state.best_fits, self.state.passed_over = None, False, 0
        self._best = {}

    def _meet_target(self) -> None:
        """At the start of a stage: let hard pruning cost what was asked for."""
        if (target := self.method.target) is None or self.state.step > 0:
            return
        self.progress.begin(self.method.adjusts, total=SEARCH_STEPS * self.method.searches)
        reached = self.method.meet(target)
        self._agree_on_gates()
        self.progress.note(f"{self.method.adjusts} set: relative FLOPs {reached:.3f} of {target} asked for")

    def _searched(self, flops: float) -> None:
        self.progress.step(flops=flops)
        self._ask_guide()

    def _ask_guide(self, score: float | None = None) -> None:
        if reason := self.guide.reason_to_stop(self.state.stage, score):
            raise Stopped(reason)

    def _agree_on_gates(self) -> None:
        """Processes must agree to the bit, and a GPU's sums need not."""
        if self.accelerator.num_processes > 1:
            for value in self.gates.state_dict().values():
                value.copy_(broadcast(value.clone()))

    # ---- the teacher

    def _predict_teacher(self) -> Tensor:
        """(rows, outputs) logits of the dense teacher on the training rows, and then on those without labels beside
        them: once, not once an epoch."""
        if self.labelled and not (self._hard_steps > 0 and (self.config.distill > 0 or self.rows.more.rows)):
            return torch.empty(0)
        rows = replace(self.rows.train, rows=self.rows.train.rows + self.rows.more.rows)
        batches = padded_batches(rows, pad_id=self.pad_id, device=self.accelerator.device.type)
        return self.teacher.predict(batches, on_batch=steps_of(self.progress, "teacher"))

    def _targets(self) -> Targets:
        lengths = tuple(self.rows.train.lengths) if self.task.spec.means in OF_TOKENS else None
        return Targets(self.teacher_logits, lengths)

    # ---- interruption

    def _snapshot(self, optimizer: torch.optim.Optimizer, *, certainly: bool) -> None:
        """Save all that a resumed run needs, unless little would be lost without: it is four times the model's size."""
        due = broadcast_object_list([certainly or time.monotonic() - self._saved >= self.config.save_seconds])[0]
        if self.work is None or not due:
            return
        if self.accelerator.is_main_process:
            groups = {
                "model": self.model.state_dict(),
                "optimizer": optimizer_tensors(self.model, optimizer),
                "best": self._best,
                "teacher": self.teacher.weights,
                **({} if self._average is None else {"average": self._average.state()}),
            }
            about = {"identity": self._identity, "standing": {**asdict(self.state), "seconds": self._seconds()}}
            write_snapshot(self.work, groups, about)
            self._saved = time.monotonic()
        self.accelerator.wait_for_everyone()

    def _restore(self) -> None:
        if self.work is None:
            raise RunError("resume needs the work folder of the interrupted run")
        groups, about = read_snapshot(self.work)
        if changed := changed_settings(about, self._identity):
            raise RunError(
                f"the interrupted run had other settings for: {', '.join(changed)}; resume with the same ones"
            )
        self.state = TrainingState(**about["standing"])
        self.model.load_state_dict(groups["model"])
        self._best, self.teacher.weights = groups.get("best", {}), groups.get("teacher", {})
        self._resumed = {name: groups[name] for name in ("optimizer", "average") if groups.get(name)}
        self.progress.note(f"resuming at stage {self.state.stage}, step {self.state.step}")

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        model = [self.model.config.model_type, *self.shape.numbers()]
        rows = (self.rows.train, self.rows.selection, self.rows.more)
        return identity_of(self.config, self.gates.config, model=model, finetune=self.finetune, rows=rows)

    def _seconds(self) -> float:
        return self.state.seconds + time.monotonic() - self._began

    def _steps(self, *epochs: float) -> int:
        """Optimizer steps of stages of so many epochs, together."""
        return sum(total_steps(len(self.rows.train.rows), each, self._loop_settings()) for each in epochs)

    @property
    def _hard_steps(self) -> int:
        """A method without a soft stage gets its steps here, so that all methods train for as long."""
        return self._steps(self.config.hard_epochs, *([] if self.method.learns else [self.config.soft_epochs]))

    def _loop_settings(self) -> LoopSettings:
        return LoopSettings.of(self.config, bf16=self.precision == "bf16", labelled=self.labelled)
