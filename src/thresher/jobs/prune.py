"""The prune job: learn which tokens a model can drop, measure it on rows that took no part, and save the run."""

import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from thresher.config import PruneConfig
from thresher.evaluation.gain import CONTROL
from thresher.jobs.measure import Version, measure, plain, remarks_on, remember_thresholds_, with_thresholds
from thresher.jobs.places import alone
from thresher.jobs.request import Note, asked, heard
from thresher.jobs.settings import PRUNE_SETTINGS, TRAIN_SETTINGS
from thresher.jobs.training import Job, TrainingRequest, gated_model, job_of, save_run
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.quality import Quality
    from thresher.training.progress import Silent
    from thresher.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class PruneRequest(TrainingRequest):
    """What `prune` is asked for."""


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """A finished run. `quality` is of the test rows: split -> dense and pruned -> Quality, with `remarks` on it;
    `history` has every evaluation on the selection rows."""

    out: Path
    task: str
    method: str
    quality: "dict[str, dict[str, Quality]]"
    selection_score: float | None
    seconds: float
    history: list[dict[str, Any]]
    remarks: tuple[str, ...]
    model: Any = field(repr=False, compare=False)  # with its gates, as it was saved
    tokenizer: Any = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "quality": plain(self.quality),
            "selection_score": self.selection_score,
            "seconds": self.seconds,
        }


def prune(
    model: str | Path | PruneRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> PruneResult | None:
    """Learn thresholds, fine-tune the pruned model and save it.

    `given` are fields of `PruneRequest`, such as out, task and data, and settings of `TrainConfig` and `PruneConfig`:
    `prune("my-encoder", out="runs/sst2", task="sst2", data="glue", target_flops=0.5)`. Where several processes share
    the work, all but the first get None.
    """
    shown, say = heard(progress, note)
    request = trained_as(PruneRequest, model, given)
    with alone(request.out):
        job = job_of(request)
        with quiet():
            return run_job(job, shown, say)


T = TypeVar("T", bound=TrainingRequest)


def trained_as(kind: type[T], model: object, given: dict[str, Any]) -> T:
    """The request of a call whose settings stand among its other arguments."""
    own = {item.name for item in fields(kind)}
    settings = {name: given[name] for name in given if name in (*TRAIN_SETTINGS, *PRUNE_SETTINGS) and name not in own}
    if settings and not isinstance(model, kind):
        rest = {name: value for name, value in given.items() if name not in settings}
        given = {**rest, "settings": {**rest.get("settings", {}), **settings}}
    return asked(kind, model, given, name="model")


def run_job(job: Job, progress: "Silent", note: Note) -> PruneResult | None:
    """Learn, measure and save; returns the result in the first process and None in the others."""
    from thresher.training.trainer import Trainer

    model, tokenizer, finetune = gated_model(job)
    trainer = Trainer(
        model,
        tokenizer,
        job.task,
        job.train,
        finetune=finetune,
        work=job.work,
        resume=job.resume,
        progress=progress,
        device=job.device,
    )
    if not job.resume and trainer.accelerator.is_main_process:
        shutil.rmtree(job.work, ignore_errors=True)
        _announce(job, trainer, note)
    trainer.accelerator.wait_for_everyone()
    state = trainer.fit()
    if not trainer.accelerator.is_main_process:
        return None
    if not state.best_fits:
        note(f"no checkpoint came down to the {job.train.target_flops:g} of the FLOPs asked for; the best is kept")
    # The test rows took no part in training or selection.
    versions = {"dense": Version(trainer.dense_weights(), pruned=False), "pruned": Version({}, pruned=True)}
    length = job.train.max_length
    versions = with_thresholds(model, tokenizer, job.task, versions, max_length=length)
    quality = measure(model, tokenizer, job.task, versions, max_length=length, progress=progress)
    remember_thresholds_(model, versions)
    result = PruneResult(
        out=job.out,
        task=job.task.spec.name,
        method=job.train.method,
        quality=quality,
        selection_score=state.best_score,
        seconds=round(state.seconds, 1),
        history=state.history,
        remarks=remarks_on(quality, job.train.to_dict(), job.task),
        model=model,
        tokenizer=tokenizer,
    )
    report = {name: value for name, value in result.to_dict().items() if name != "out"}
    dense = trainer.dense_weights() if finetune else None
    save_run(job, model, tokenizer, {**report, "history": state.history}, dense=dense)
    return result


def _announce(job: Job, trainer: "Trainer", note: Note) -> None:
    """What will be done, for a user who gave but a model and a task."""
    train = job.train
    score = PruneConfig.from_dict({"separator_id": 0, **job.prune}).for_method(train.method).score
    cost = f"{train.target_flops:g} of the FLOPs" if train.target_flops is not None else f"lambda {train.lambda_:g}"
    count = trainer.accelerator.num_processes
    processes = f", {count} processes" if count > 1 else ""
    note(f"data: {job.task.source}")
    how = "nothing is dropped" if train.method == CONTROL else f"scores by {score}, {cost}"
    note(f"recipe {train.recipe}: method {train.method}, {how}")
    note(f"training in {trainer.precision} on {trainer.accelerator.device.type}{processes}")
    for text in trainer.rows.truncation():
        note(text)
