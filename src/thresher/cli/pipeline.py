"""From a dense model to a saved run: load, train, evaluate on held-out rows, save. For `prune`, `search` and `demo`."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.cli.options import kind_of, load_training_rows, pick_device
from thresher.config import PruneConfig, TrainConfig
from thresher.errors import ConfigError, ModelError, RunError
from thresher.workplace import expanded, has_state, work_of

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.core.heads import Head
    from thresher.tasks import Task


# What transformers calls the tasks that a new head is made for.
PROBLEMS = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "value": "regression",
    "score": "regression",
}


@dataclass(frozen=True)
class Job:
    """Everything a pruning run is told."""

    model: str
    task: "Task"
    prune: dict[str, Any]  # settings of PruneConfig; the separator's id is filled in from the tokenizer
    train: TrainConfig
    out: Path
    finetune: str  # auto, always or never
    device: str
    resume: bool = False
    overwrite: bool = False

    @property
    def work(self) -> Path:
        """Where the state of unfinished work lives; `out` itself appears only when it is complete."""
        return work_of(self.out)


@dataclass(frozen=True)
class Outcome:
    """What a run gives; None in all processes but the first."""

    model: Any
    tokenizer: Any
    report: dict[str, Any]


def job_of(given: dict[str, Any], *, train: TrainConfig, prune: dict[str, Any]) -> Job:
    """The job that the flags of `prune` or `search` describe, with its rows."""
    if given["finetune"] not in ("auto", "always", "never"):
        raise ConfigError(f"finetune = {given['finetune']!r} is not one of: auto, always, never")
    columns = (given["text_column"], given["pair_column"], given["label_column"])
    rows = load_training_rows(
        **{name: given[name] for name in ("task", "data", "train", "test", "selection", "regression", "class_names")},
        columns=columns,
        kind=kind_of(given),
    )
    plain = {name: given[name] for name in ("model", "out", "finetune", "resume", "overwrite")}
    return Job(**plain, task=rows, prune=prune, train=train, device=pick_device(given["device"]))


def check_output(job: Job) -> None:
    """Refuse to destroy anything, before any work starts."""
    from thresher.models.checkpoint import MANIFEST

    if job.resume and job.overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite replaces it; give one of them")
    _check_folder(job.out)
    _check_contents(job.out, overwrite=job.resume or job.overwrite or job.work.exists())
    saved = has_state(job.work)
    if job.resume and not saved:
        if job.work.exists():
            raise RunError(f"nothing to resume: {job.work} has no saved state yet; start anew with --overwrite")
        if (job.out / MANIFEST).is_file():
            raise RunError(f"nothing to resume: {job.out} is already complete; replace it with --overwrite")
        raise RunError(f"nothing to resume: {job.work} does not exist; start without --resume")
    if job.resume or job.overwrite:
        return
    if job.work.exists():
        way = "go on with --resume, or start anew" if saved else "nothing is saved to go on from; start anew"
        raise RunError(f"{job.work} holds an interrupted run; {way} with --overwrite")


def check_place(out: Path, *, overwrite: bool) -> None:
    """Find out now, and not after hours of work, that a run cannot be put there. Nothing but a run is replaced."""
    _check_folder(out)
    _check_contents(out, overwrite=overwrite)


def _check_contents(out: Path, *, overwrite: bool) -> None:
    from thresher.models.checkpoint import MANIFEST

    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise RunError(f"{out} exists and is not a thresher run; choose another --out")
    if not overwrite:
        raise RunError(f"{out} already holds a run; choose another --out, or replace it with --overwrite")


def _check_folder(out: Path) -> None:
    if not out.name:
        raise ConfigError(f"--out {out} is not the name of a new folder; give one such as runs/first")
    if out.is_file():
        raise RunError(f"{out} is a file; --out must name a folder")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=f".{out.name}."):
            pass
    except OSError as error:
        raise RunError(f"cannot make {out} in {above}: {error.strerror}; choose another --out") from error


def run_job(job: Job, screen: "Console") -> Outcome | None:
    """Learn, measure and save; returns the outcome in the first process and None in the others."""
    from rich.markup import escape

    from thresher.baselines import method_named
    from thresher.cli.measure import Version, measure
    from thresher.models.attach import prune_
    from thresher.models.defaults import mean_by_
    from thresher.models.heads import head_of
    from thresher.training.progress import Bars
    from thresher.training.trainer import Trainer

    check_output(job)
    model, tokenizer, finetune = load_model(job)
    mean_by_(model, job.task.spec.means)
    prune_(model, prune_config(job.prune, tokenizer, head_of(model)))
    trainer = Trainer(
        model,
        tokenizer,
        job.task,
        job.train,
        method=method_named(job.train.method),
        finetune=finetune,
        work=job.work,
        resume=job.resume,
        progress=Bars(screen),
        device=job.device,
    )
    if not job.resume and trainer.accelerator.is_main_process:
        shutil.rmtree(job.work, ignore_errors=True)
        screen.print(escape(f"data: {job.task.source}"))
        screen.print(_plan_of(job))
        count = trainer.accelerator.num_processes
        processes = f", {count} processes" if count > 1 else ""
        screen.print(f"training in {trainer.precision} on {trainer.accelerator.device.type}{processes}")
        for text in trainer.truncation():
            screen.print(text)
    trainer.accelerator.wait_for_everyone()
    standing = trainer.fit()
    if not trainer.accelerator.is_main_process:
        return None
    if not standing.best_fits:
        screen.print(
            f"no checkpoint came down to the {job.train.target_flops:g} of the FLOPs asked for; the best is kept"
        )
    # The test rows took no part in training or selection.
    versions = {"dense": Version(trainer.dense_weights(), pruned=False), "pruned": Version({}, pruned=True)}
    quality = measure(model, tokenizer, job.task, versions, max_length=job.train.max_length, screen=screen)
    report = {
        "quality": quality,
        "selection_score": standing.best_score,
        "seconds": round(standing.seconds, 1),
        "history": standing.history,
    }
    save_run(job, model, tokenizer, report, dense=trainer.dense_weights() if finetune else None)
    return Outcome(model=model, tokenizer=tokenizer, report=report)


def _plan_of(job: Job) -> str:
    """What will be done, for a user who gave but a model and a task."""
    train, config = job.train, PruneConfig.from_dict({"separator_id": 0, **job.prune})
    cost = f"{train.target_flops:g} of the FLOPs" if train.target_flops is not None else f"lambda {train.lambda_:g}"
    return f"recipe {train.recipe}: method {train.method}, scores by {config.score}, {cost}"


def load_model(job: Job) -> tuple[Any, Any, bool]:
    """The model, its tokenizer, and whether a head must be fine-tuned first."""
    import torch

    from thresher.models.checkpoint import has_head, load_dense
    from thresher.models.classes import check_classes, name_classes_

    torch.manual_seed(job.train.seed)  # a new head's weights are part of the run
    spec = job.task.spec
    check_dense(job.model)
    if spec.means == "embedding" and job.finetune == "always":
        raise ConfigError("--finetune always trains a head, and embeddings (--embed) have none; leave it out")
    fits = spec.means == "embedding" or has_head(job.model, spec.num_labels)
    if job.finetune == "never" and not fits:
        raise ModelError(
            f"'{job.model}' has no classification head with {spec.num_labels} outputs, and --finetune never "
            "forbids to train one; use --finetune auto"
        )
    if not fits and job.finetune == "auto" and has_head(job.model):
        raise ModelError(
            f"'{job.model}' is a classifier, but not with the {spec.num_labels} outputs of the task; train a new head "
            "in place of its own with --finetune always"
        )
    if fits and job.finetune != "always":
        model, tokenizer = load_dense(job.model, whole=True)
        asked_for = job.finetune == "never"
        check_classes(model, spec.labels, order=spec.class_order, forgiven=asked_for)
        name_classes_(model, spec.labels, anew=asked_for)
        return model, tokenizer, False
    labels = dict(enumerate(spec.labels or (spec.means,)))
    model, tokenizer = load_dense(
        job.model,
        num_labels=spec.num_labels,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
        problem_type=PROBLEMS[spec.means],
    )
    return model, tokenizer, True


def check_dense(model: str) -> None:
    """Refuse a run of ours, whose weights are those of a pruned model."""
    from thresher.models.manifest import is_run

    if is_run(model):
        dense = " (it has one in its folder dense/)" if (Path(expanded(model)) / "dense").is_dir() else ""
        raise ModelError(f"{model} is a pruned run with thresholds of its own; give a dense model{dense}")


def prune_config(settings: dict[str, Any], tokenizer: Any, head: "Head | None" = None) -> PruneConfig:
    """Add what the head needs, and the separator's id when a protected group needs it."""
    from thresher.models.defaults import prune_defaults, separator_of

    if head is not None:
        settings = {**prune_defaults(head, tokenizer), **settings}
    if "separator_id" in settings or not {"separators", "first_segment"} & set(settings.get("protect", ())):
        return PruneConfig.from_dict(settings)
    return PruneConfig.from_dict({**settings, "separator_id": separator_of(tokenizer)})


def save_run(
    job: Job,
    model: Any,
    tokenizer: Any,
    report: dict[str, Any],
    *,
    dense: dict[str, Any] | None,
    add_files: Callable[[Path], object] = lambda folder: None,
    keep_work: bool = False,
) -> None:
    """The run as one folder that appears whole; the dense model we fine-tuned ourselves goes into its folder dense/.

    `add_files` writes what else belongs there. The state of unfinished work goes last, unless it is kept: a kill before
    leaves it.
    """
    from thresher.models.checkpoint import replacing_folder, save
    from thresher.records import provenance

    about = {
        "base_model": job.model if dense is None else f"{job.model}, fine-tuned here (see dense/)",
        **report,
        "provenance": provenance(device=job.device, seed=job.train.seed),
    }
    with replacing_folder(job.out) as folder:
        save(model, tokenizer, folder, about=about, dense=dense)
        add_files(folder)
    if not keep_work:
        shutil.rmtree(job.work, ignore_errors=True)
