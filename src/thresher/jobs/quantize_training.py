"""Training on after quantization: products lose what int8 loses while the weights learn to live with it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.config import TrainConfig, trained_length
from thresher.engine.rounding import round_, unround_
from thresher.engine.weights import LayerScales
from thresher.errors import ConfigError, ModelError
from thresher.evaluation.lineup import dense_of
from thresher.jobs.measure import Version, measure, plain, remember_thresholds_, with_thresholds
from thresher.jobs.request import Note
from thresher.models.attach import gates_of, weights_without_gates
from thresher.models.checkpoint import Checkpoint, load_dense
from thresher.models.heads import head_of
from thresher.models.manifest import DENSE_THRESHOLD, dense_threshold
from thresher.records import provenance

if TYPE_CHECKING:
    from torch import Tensor

    from thresher.tasks import Task
    from thresher.training.progress import Silent

OF_THE_STAGE = ("hard_epochs", "soft_epochs", "finetune_epochs", "target_flops", "lambda_", "method", "max_length")


@dataclass(frozen=True)
class Teacher:
    """The dense model that the run was pruned from, and how it is called."""

    name: str
    weights: "dict[str, Tensor]"


@dataclass(frozen=True)
class TrainedOn:
    """A model after training in int8: what its run's description says anew, and what the block on int8 says of it."""

    description: dict[str, Any]
    block: dict[str, Any]


def teacher_of(run: Path, checkpoint: Checkpoint) -> Teacher:
    """The model to learn from, which must still be there: a run does not contain it where it was given fine-tuned."""
    dense = dense_of(run, checkpoint)
    if dense.folder == run:
        named = checkpoint.manifest.get("base_model", "it")
        raise ModelError(
            f"the dense model that {run} was pruned from teaches it, and {named} is not here; put it back, or quantize "
            "without training (leave --epochs out)"
        )
    return Teacher(dense.name, load_dense(dense.folder, whole=True)[0].state_dict())


def settings_for(manifest: Mapping[str, Any], *, epochs: float, settings: Mapping[str, Any]) -> TrainConfig:
    """The run's own settings, with those that are given over them, for one stage of so many epochs.

    A run that was calibrated without training has none, and takes the default ones.
    """
    for name in settings:
        if name in OF_THE_STAGE:
            raise ConfigError(f"{name} is no setting of training in int8; the run's pruning stays, and --epochs is all")
    recipe = manifest.get("recipe")
    own = dict(recipe) if isinstance(recipe, dict) and "method" in recipe else {"max_length": trained_length(manifest)}
    return TrainConfig.from_dict({**own, **settings, "hard_epochs": epochs, "soft_epochs": 0.0})


def train_in_int8(
    checkpoint: Checkpoint,
    task: "Task",
    scales: Sequence[LayerScales],
    *,
    teacher: Teacher,
    config: TrainConfig,
    work: Path,
    resume: bool,
    device: str,
    rounded: bool,
    progress: "Silent",
    note: Note,
) -> TrainedOn:
    """Train a loaded run on with these scales; its model then has the new weights, in floating point, on the CPU. Not
    `rounded`, all is the same but the products, which stay as they are."""
    from thresher.training.trainer import Trainer

    model, tokenizer, gates = checkpoint.model, checkpoint.tokenizer, gates_of(checkpoint.model)
    known = gates.about
    if rounded:
        round_(model, scales)
    trainer = Trainer(
        model,
        tokenizer,
        task,
        config,
        teacher=teacher.weights,
        work=work,
        resume=resume,
        progress=progress,
        device=device,
    )
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
        how = "in int8" if rounded else "on without int8, its control,"
        note(f"training {how} on {device}, products of {trainer.precision}; teacher: {teacher.name}")
        for text in trainer.rows.truncation():
            note(text)
    state = trainer.fit()
    unround_(model)
    gates.about = known
    own = dense_threshold(checkpoint.manifest) or 0.0
    versions = {
        "dense": Version(teacher.weights, pruned=False, null_threshold=own),
        "pruned": Version({}, pruned=True),
    }
    versions = with_thresholds(model, tokenizer, task, versions, max_length=config.max_length)
    quality = measure(model, tokenizer, task, versions, max_length=config.max_length, progress=progress)
    remember_thresholds_(model, versions)
    model.to("cpu")
    return TrainedOn(
        description={
            "quality": plain(quality),
            "head": head_of(model).to_dict(),
            **({DENSE_THRESHOLD: gates.about[DENSE_THRESHOLD]} if DENSE_THRESHOLD in gates.about else {}),
        },
        block={
            "epochs": config.hard_epochs,
            "rounded": rounded,
            "teacher": teacher.name,
            "settings": config.to_dict(),
            "selection_score": state.best_score,
            "seconds": round(state.seconds, 1),
            "history": state.history,
            "provenance": provenance(device=device, seed=config.seed),
        },
    )


def write_weights(model: Any, folder: Path) -> None:
    """In place of those of the run that `folder` is a copy of."""
    model.save_pretrained(folder, state_dict=weights_without_gates(model))
