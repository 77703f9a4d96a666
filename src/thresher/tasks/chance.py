"""Whether a classifier knows more than chance does, and whether rows can tell."""

import math
from collections.abc import Mapping, Sequence

from thresher.tasks.task import Example, TaskSpec

ERRORS = 2.0  # standard errors below chance that rows alone do not explain


def below_chance(spec: TaskSpec, metrics: Mapping[str, float], *, rows: int) -> list[str]:
    """What is to be said of a dense model that is right less often than guessing: its classes may be mixed up."""
    classes, found = len(spec.labels), metrics.get("accuracy")
    if found is None or classes < 2:
        return []
    chance = 1 / classes
    if found >= chance - ERRORS * math.sqrt(chance * (1 - chance) / rows):
        return []
    return [
        f"warning: the dense model is right on {100 * found:.1f}% of the selection rows, and guessing would be on "
        f"{100 * chance:.1f}%; are its outputs {', '.join(spec.labels)}, in this order? If not, say it with "
        "--class-names (in Python class_names=[...])"
    ]


def same_labels(spec: TaskSpec, rows: Sequence[Example], *, split: str = "selection") -> list[str]:
    """What is to be said of rows whose values, or similarities, are all the same: every model's correlation is 0."""
    values = {row.label for row in rows} if spec.means in ("value", "embedding") else set()
    if len(values) != 1 or None in values:
        return []
    are = "is" if len(spec.metrics) == 1 else "are"
    return [
        f"warning: the {split} rows all have the label {values.pop()}, in which there is no order to find: "
        f"{' and '.join(spec.metrics)} {are} 0 whatever a model says; give rows with different ones"
    ]
