"""Quality of several versions of one model on its test splits. For `prune`, `search` and `evaluate_run`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from thresher.evaluation.quality import Quality
    from thresher.tasks import Task
    from thresher.training.progress import Silent


@dataclass(frozen=True)
class Version:
    """Weights of the model (with or without its gates), and whether it prunes with them."""

    weights: "dict[str, Tensor]"
    pruned: bool


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
                    on_batch=_steps(bars, f"{split}: {name}"),
                    dense=references.get(split),
                )
    model.load_state_dict(own)
    return found


def plain(quality: "dict[str, dict[str, Quality]]") -> dict[str, dict[str, dict[str, Any]]]:
    """As JSON has it."""
    return {split: {name: one.to_dict() for name, one in models.items()} for split, models in quality.items()}


def remarks_on(quality: "dict[str, dict[str, Quality]]", recipe: Any) -> tuple[str, ...]:
    """Where pruned is ahead of dense, what else may be the reason; `recipe` is the run's."""
    from thresher.evaluation.gain import gain_notes

    return tuple(gain_notes(plain(quality), recipe))


def _steps(bars: "Silent", name: str) -> Callable[[int, int], None]:
    """Steps of a bar of its own, for one who tells how much is done."""
    seen = 0

    def advance(done: int, total: int) -> None:
        nonlocal seen
        if seen == 0:
            bars.begin(name, total=total)
        for _ in range(done - seen):
            bars.step()
        seen = done

    return advance
