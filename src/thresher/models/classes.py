"""The names of a model's classes, beside those of a task."""

from collections.abc import Sequence
from typing import Any

from thresher.errors import ModelError


def name_classes_(model: Any, labels: Sequence[str], *, anew: bool = False) -> None:
    """Give a model whose classes have no names yet (LABEL_0, ...) these names, in place; `anew` in any case."""
    names = dict(enumerate(labels))
    anew = anew and not _say_nothing(labels)  # numbers say less than what is there
    if names and (anew or model.config.id2label == {index: f"LABEL_{index}" for index in names}):
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


def check_classes(model: Any, labels: Sequence[str], *, order: str = "task", forgiven: bool = False) -> None:
    """Refuse a trained head whose classes are not the task's: each would be trained, and scored, as another.

    `order` says who put `labels` in their order, as in TaskSpec.class_order: the alphabet knows nothing of a model
    whose classes have no names, or others; the user does. `forgiven`: other names are known to mean the same.
    """
    check_class_order(model, labels, order=order)
    own = class_names(model)
    other_names = how_classes_differ(own, labels) == "names"
    if order == "alphabet" and (other_names or _say_nothing(own)) and not _say_nothing(labels):
        raise ModelError(
            f"the model's classes are {', '.join(own)}, those of the rows {', '.join(labels)}, and nothing says which "
            f"is which; name them in the order of the model's outputs with --class-names {','.join(labels)} (in Python "
            "class_names=[...]), or train a new head with --finetune always"
        )
    if other_names and order != "user" and not forgiven:
        raise ModelError(
            f"the model's classes are {', '.join(own)}, the task's {', '.join(labels)}; train a new head with "
            "--finetune always, or take the one there is with --finetune never; in Python give model.config.id2label "
            "the task's names where they mean the same"
        )


def check_class_order(model: Any, labels: Sequence[str], *, order: str = "task") -> None:
    """Refuse the task's classes in another order: each would be trained, and scored, as another."""
    own = class_names(model)
    if how_classes_differ(own, labels) != "order":
        return
    spelled = {name.lower(): name for name in labels}
    right = ",".join(spelled[name.lower()] for name in own)
    way = f"give --class-names {right} (in Python class_names=[...]), or " if order != "task" else ""
    raise ModelError(
        f"the model's classes are in the order {', '.join(own)}, the task's in the order {', '.join(labels)}; "
        f"{way}train a new head (thresher prune --finetune always)"
    )


def _say_nothing(names: Sequence[str]) -> bool:
    """Whether classes have no names, or only numbers: LABEL_0, 1."""
    return all(name.lower().removeprefix("label_").isdigit() for name in names)
