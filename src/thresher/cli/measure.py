"""Quality of several versions of one model on a test split, with a progress bar. Used by `prune`, `demo` and `eval`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from thresher.tasks import Task


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
    screen: "Console",
) -> dict[str, dict[str, dict[str, Any]]]:
    """Every version on every test split: split -> version -> Quality. The model is left with its own weights.

    Rows without labels are judged by agreement with the version named dense.
    """
    from rich.progress import Progress

    from thresher.evaluation.quality import evaluate, outputs_of
    from thresher.tasks.task import labelled

    own = {name: value.clone() for name, value in model.state_dict().items()}
    found: dict[str, dict[str, dict[str, Any]]] = {split: {} for split in task.test}
    references: dict[str, Any] = {}
    with Progress(console=screen, transient=True) as bars:
        for name, version in versions.items():
            model.load_state_dict({**own, **version.weights})
            for split in task.test if name == "dense" else ():
                if not labelled(task.test[split], name=task.spec.name):
                    references[split] = outputs_of(model, tokenizer, task, split=split, max_length=max_length)
            for split in task.test:
                bar = bars.add_task(f"{split}: {name}", total=None)

                def advance(done: int, total: int, bar: Any = bar) -> None:
                    bars.update(bar, completed=done, total=total)

                quality = evaluate(
                    model,
                    tokenizer,
                    task,
                    split=split,
                    max_length=max_length,
                    pruned=version.pruned,
                    on_batch=advance,
                    dense=references.get(split),
                )
                found[split][name] = quality.to_dict()
    model.load_state_dict(own)
    return found
