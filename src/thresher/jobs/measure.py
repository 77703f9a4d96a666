"""Quality of several versions of one model on its test splits. For `prune`, `search` and `evaluate_run`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from thresher.evaluation.quality import Quality
    from thresher.tasks import Task
    from thresher.training.progress import Silent


@dataclass(frozen=True)
class Version:
    """Weights of the model (with or without its gates), whether it prunes with them, and by how much no answer must be
    better to be given; None: as the model itself says."""

    weights: "dict[str, Tensor]"
    pruned: bool
    null_threshold: float | None = None


def with_thresholds(
    model: Any, tokenizer: Any, task: "Task", versions: dict[str, Version], *, max_length: int | None
) -> dict[str, Version]:
    """The versions with the null threshold that suits each best on the task's selection rows; as they are where those
    have no labels, or nothing is ever withheld. The model is left with its own weights."""
    from thresher.evaluation.quality import chosen_threshold

    if task.spec.means != "span":
        return versions
    own, found = {name: value.clone() for name, value in model.state_dict().items()}, dict(versions)
    for name, version in versions.items():
        model.load_state_dict({**own, **version.weights})
        chosen = chosen_threshold(model, tokenizer, task, max_length=max_length, pruned=version.pruned)
        if chosen is None:
            break
        found[name] = replace(version, null_threshold=chosen)
    model.load_state_dict(own)
    return found


def measure(
    model: Any,
    tokenizer: Any,
    task: "Task",
    versions: dict[str, Version],
    *,
    max_length: int | None,
    progress: "Silent",
) -> "dict[str, dict[str, Quality]]":
    """Every version on every test split: split -> version -> Quality. The model is left with its own weights.

    Rows without labels are judged by agreement with the version named dense.
    """
    from thresher.evaluation.quality import evaluate, outputs_of
    from thresher.tasks.task import labelled
    from thresher.training.progress import steps_of

    own = {name: value.clone() for name, value in model.state_dict().items()}
    found: dict[str, dict[str, Quality]] = {split: {} for split in task.test}
    references: dict[str, Any] = {}
    with progress.brief() as bars:
        for name, version in versions.items():
            model.load_state_dict({**own, **version.weights})
            for split in task.test if name == "dense" else ():
                if not labelled(task.test[split], name=task.spec.name):
                    references[split] = outputs_of(model, tokenizer, task, split=split, max_length=max_length)
            for split in task.test:
                found[split][name] = evaluate(
                    model,
                    tokenizer,
                    task,
                    split=split,
                    max_length=max_length,
                    pruned=version.pruned,
                    on_batch=steps_of(bars, f"{split}: {name}"),
                    dense=references.get(split),
                    null_threshold=version.null_threshold,
                )
    model.load_state_dict(own)
    return found


def remember_thresholds_(model: Any, versions: dict[str, Version]) -> None:
    """Let a model that finds answers know the null threshold of its pruned version, and its run the dense model's, in
    place."""
    from thresher.models.attach import gates_of
    from thresher.models.heads import head_of, set_head_
    from thresher.models.manifest import DENSE_THRESHOLD

    pruned, dense = versions["pruned"].null_threshold, versions["dense"].null_threshold
    if head_of(model).means != "span":
        return
    if pruned is not None:
        set_head_(model, replace(head_of(model), null_threshold=pruned))
    if dense is not None:
        gates_of(model).about = {**gates_of(model).about, DENSE_THRESHOLD: dense}


def plain(quality: "dict[str, dict[str, Quality]]") -> dict[str, dict[str, dict[str, Any]]]:
    """As JSON has it."""
    return {split: {name: one.to_dict() for name, one in models.items()} for split, models in quality.items()}


def remarks_on(quality: "dict[str, dict[str, Quality]]", recipe: Any, task: "Task") -> tuple[str, ...]:
    """Where pruned is ahead of dense, what else may be the reason, and which rows can judge neither; `recipe` is the
    run's."""
    from thresher.evaluation.gain import gain_notes
    from thresher.tasks.chance import same_labels

    judging = (text for split, rows in task.test.items() for text in same_labels(task.spec, rows, split=split))
    return (*gain_notes(plain(quality), recipe), *judging)
