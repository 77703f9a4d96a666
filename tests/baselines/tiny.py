"""A tiny model of six layers (three of them prune in SpAtten's schedule), and a trainer for a named method."""

from typing import Any

from tests.training.tiny import gated_model, quick, trainer_for
from thresher.baselines import method_named
from thresher.training.trainer import Trainer

LAYERS = 6
TARGET = 0.7


def settings(method: str, **changes: Any) -> Any:
    return quick(**{"method": method, "target_flops": TARGET, "max_steps": 4, "search_rounds": 2, **changes})


def trainer_of(method: str, *, model: Any = None, prune: dict[str, Any] | None = None, **changes: Any) -> Trainer:
    """`changes` are the trainer's own arguments, or settings of TrainConfig."""
    names = ("task", "tokenizer", "work", "resume", "progress", "finetune")
    arguments = {name: changes.pop(name) for name in names if name in changes}
    outputs = arguments["task"].spec.num_labels if "task" in arguments else 2
    model = model if model is not None else gated_model(layers=LAYERS, outputs=outputs, **(prune or {}))
    return trainer_for(model, settings(method, **changes), method=method_named(method), **arguments)
