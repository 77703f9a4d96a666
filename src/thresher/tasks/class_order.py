"""Which class is output 0 of a model: told by the user, fixed by the task, or else by the alphabet."""

from collections.abc import Sequence
from dataclasses import replace

from thresher.errors import ConfigError, DataError
from thresher.tasks.labels import Labels, listed
from thresher.tasks.several import SeveralLabels

Named = Labels | SeveralLabels
ALPHABET, USER, TASK = "alphabet", "user", "task"  # what TaskSpec.class_order may be


def in_order(labels: Named, class_names: Sequence[str], *, where: object) -> Named:
    """The labels of a file with the user's order of their classes, which may have more than the file shows."""
    names = tuple(class_names)
    if isinstance(class_names, str) or len(set(names)) != len(names) or len(names) < 2 or not all(names):
        raise ConfigError(f"class_names = {class_names!r} must be two or more different names, output 0 first")
    if not labels.names:
        raise ConfigError(
            f"class_names = {listed(names)}, but the labels of {where} are numbers to predict; leave the names out, or "
            "say --classes (regression=False)"
        )
    lost = [name for name in labels.names if name not in names]
    if lost:
        raise DataError(
            f"{where} has the labels {listed(labels.names)}, but the classes are {listed(names)}; name all of them, "
            "spelled as they are there"
        )
    return replace(labels, names=names)


def order_of(labels: Named, class_names: Sequence[str] | None) -> str:
    """Who put the classes in their order. Whole numbers are in an order of their own."""
    own = not labels.names or labels.whole
    return USER if class_names is not None else TASK if own else ALPHABET


def parse_class_names(text: str | None) -> list[str] | None:
    """NEG,POS as a user types it."""
    return None if text is None else [name.strip() for name in text.split(",")]
