"""What a run that trains is told, and its first and last steps: load a dense model, save the pruned one."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.config import QUESTION_WINDOW, PruneConfig, TrainConfig, read_toml
from thresher.errors import ConfigError, ModelError
from thresher.jobs.places import check_dense, check_output, pick_device
from thresher.jobs.rows import TrainingRows
from thresher.jobs.settings import resolve, split_settings
from thresher.workplace import work_of

if TYPE_CHECKING:
    from thresher.tasks import Task


# What a head that reads every token is for.
KINDS = {"span": "question answering", "tags": "token classification"}
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


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(TrainingRows):
    """What is asked of a run that trains: the model, the rows, the folder to write, and how.

    `model` is a Hugging Face folder or hub name, fine-tuned or not. `settings` are any of `TrainConfig` and
    `PruneConfig`; they override those of the TOML file `config`, which override those of the `recipe`. `finetune` says
    when a head is trained first: auto (if there is none), always or never. `resume` goes on with an interrupted run,
    `overwrite` replaces the run in `out`.
    """

    PATHS: ClassVar[tuple[str, ...]] = (*TrainingRows.PATHS, "out", "config")

    model: str
    out: Path
    recipe: str | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    finetune: str = "auto"
    device: str = "auto"
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", str(self.model))


def configured(request: TrainingRequest) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings that a request makes together with its file and its recipe."""
    train, prune = split_settings(request.settings)
    return resolve(request.recipe, request.config, train_flags=train, prune_flags=prune)


def job_of(request: TrainingRequest) -> Job:
    """The job that a request describes, with its settings and rows."""
    train, prune = configured(request)
    if request.finetune not in ("auto", "always", "never"):
        raise ConfigError(f"finetune = {request.finetune!r} is not one of: auto, always, never")
    task = _judged(request.load_training())
    return Job(
        model=request.model,
        task=task,
        prune=prune,
        train=_windowed(request, train) if task.spec.means == "span" else train,
        out=request.out,
        finetune=request.finetune,
        device=pick_device(request.device),
        resume=request.resume,
        overwrite=request.overwrite,
    )


def _windowed(request: TrainingRequest, train: TrainConfig) -> TrainConfig:
    """Contexts are long: their windows have 384 tokens, unless another length was asked for."""
    in_file = {} if request.config is None else read_toml(request.config).get("train", {})
    return train if "max_length" in {*request.settings, *in_file} else replace(train, max_length=QUESTION_WINDOW)


def _judged(task: "Task") -> "Task":
    """The task, if its test rows can judge a model: training does not look at them, and afterwards it is too late."""
    from thresher.tasks.task import labelled

    for rows in task.test.values():
        if labelled(rows, name=task.spec.name):
            task.spec.truth(rows)
    return task


def gated_model(job: Job) -> tuple[Any, Any, bool]:
    """What `load_model` gives, with gates; before anything is loaded, `out` is found to be a place for it."""
    from thresher.models.attach import prune_
    from thresher.models.defaults import mean_by_

    check_output(job)
    model, tokenizer, finetune = load_model(job)
    mean_by_(model, job.task.spec.means)
    prune_(model, prune_config(job.prune, tokenizer, model))
    return model, tokenizer, finetune


def load_model(job: Job) -> tuple[Any, Any, bool]:
    """The model, its tokenizer, and whether a head must be fine-tuned first."""
    import torch

    from thresher.models.checkpoint import has_head, load_dense
    from thresher.models.classes import check_classes, name_classes_
    from thresher.models.sentence_folder import EMBEDDERS, is_embedder

    torch.manual_seed(job.train.seed)  # a new head's weights are part of the run
    spec = job.task.spec
    check_dense(job.model)
    if spec.means == "embedding" and job.finetune == "always":
        raise ConfigError("--finetune always trains a head, and embeddings (--embed) have none; leave it out")
    if spec.means == "embedding" and not has_head(job.model) and not is_embedder(job.model):
        raise ModelError(f"'{job.model}' is an encoder alone. {EMBEDDERS}")
    fits = spec.means == "embedding" or has_head(job.model, spec.num_labels, means=spec.means)
    if job.finetune == "never" and not fits:
        raise ModelError(
            f"'{job.model}' has no {KINDS.get(spec.means, 'classification')} head with {spec.num_labels} outputs, and "
            "--finetune never forbids to train one; use --finetune auto"
        )
    if not fits and job.finetune == "auto" and has_head(job.model):
        kind = "is a classifier, but not" if spec.means not in KINDS else f"has a head, but not for {KINDS[spec.means]}"
        raise ModelError(
            f"'{job.model}' {kind} with the {spec.num_labels} outputs of the task; train a new head "
            "in place of its own with --finetune always"
        )
    if fits and job.finetune != "always":
        model, tokenizer = load_dense(job.model, whole=True)
        asked_for = job.finetune == "never"
        check_classes(model, spec.labels, order=spec.class_order, forgiven=asked_for)
        name_classes_(model, spec.labels, anew=asked_for)
        return model, tokenizer, False
    labels = dict(enumerate(spec.labels or (("start", "end") if spec.means == "span" else (spec.means,))))
    model, tokenizer = load_dense(
        job.model,
        means=spec.means,
        num_labels=spec.num_labels,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
        problem_type=PROBLEMS.get(spec.means),
    )
    return model, tokenizer, True


def prune_config(settings: dict[str, Any], tokenizer: Any, model: Any) -> PruneConfig:
    """Add what the model's head needs, and the separator's id when a protected group needs it."""
    from thresher.models.defaults import prune_defaults, separator_of
    from thresher.models.heads import head_of

    settings = {**prune_defaults(head_of(model), tokenizer), **settings}
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
