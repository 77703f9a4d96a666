"""The names of a model's classes, beside those of a task."""

from collections.abc import Sequence
from typing import Any

from thresher.errors import ModelError


def name_classes_(model: Any, labels: Sequence[str]) -> None:
    """Give a model whose classes have no names yet (LABEL_0, ...) these names, in place."""
    names = dict(enumerate(labels))
    if names and model.config.id2label == {index: f"LABEL_{index}" for index in names}:
        model.config.id2label = names
        model.config.label2id = {name: index for index, name in names.items()}


def class_names(model: Any) -> list[str]:
    return [str(model.config.id2label[index]) for index in range(model.config.num_labels)]


def how_classes_differ(own: Sequence[str], wanted: Sequence[str]) -> str | None:
    """'order' or 'names', whatever the case of the letters; None where they do not, or where one side has no names."""
    one, other = ([name.lower() for name in names] for names in (own, wanted))
    if one == other or _say_nothing(one) or _say_nothing(other):
        return None
    return "order" if set(one) == set(other) else "names"


def check_class_order(model: Any, labels: Sequence[str]) -> None:
    """Refuse the task's classes in another order: each would be trained, and scored, as another."""
    own = class_names(model)
    if how_classes_differ(own, labels) == "order":
        raise ModelError(
            f"the model's classes are in the order {', '.join(own)}, the task's in the order {', '.join(labels)}; "
            "train a new head (thresher prune --finetune always)"
        )


def _say_nothing(names: list[str]) -> bool:
    """Whether classes have no names, or only numbers: LABEL_0, 1."""
    return all(name.removeprefix("label_").isdigit() for name in names)
