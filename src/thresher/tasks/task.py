"""What a task is: its rows, its labels and its metrics, wherever the data come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.tasks import metrics as task_metrics


@dataclass(frozen=True)
class Example:
    """One row. The label is a class index, or a float for regression."""

    text: str
    pair: str | None
    label: float | int


@dataclass(frozen=True)
class TaskSpec:
    """What a model for the task must predict, and how it is judged. No labels means regression.

    `class_order` says who put `labels` in their order: the "task" itself, the "user", or, knowing nothing, the
    "alphabet".
    """

    name: str
    text_column: str
    pair_column: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    label_column: str = "label"
    class_order: str = "task"

    def __post_init__(self) -> None:
        known = task_metrics.REGRESSION_METRICS if self.regression else task_metrics.CLASS_METRICS
        if not self.metrics or not set(self.metrics) <= set(known):
            kind = "regression" if self.regression else "classification"
            raise ValueError(f"metrics = {self.metrics} of task {self.name}: {kind} knows {', '.join(known)}")
        if "f1" in self.metrics and len(self.labels) != 2:
            rule = f"f1 needs two labels, and there are {len(self.labels)}"
            raise ValueError(f"metrics = {self.metrics} of task {self.name}: {rule}; use accuracy")

    @property
    def regression(self) -> bool:
        return not self.labels

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one per class, a single one for regression."""
        return max(1, len(self.labels))


@dataclass(frozen=True)
class Task:
    """A task with its data. `selection` chooses checkpoints and settings; `test` is only ever reported. `left_out` are
    training rows that are not used, because they are pieces of selection rows."""

    spec: TaskSpec
    train: list[Example]
    selection: list[Example]
    test: dict[str, list[Example]]
    source: str
    left_out: list[Example] = field(default_factory=list)
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # the user's own: path and sha256 of each

    def describe(self) -> dict[str, Any]:
        """What a saved run remembers of its task."""
        spec = self.spec
        columns = {"text": spec.text_column, "pair": spec.pair_column, "label": spec.label_column}
        about = {"name": spec.name, "labels": list(spec.labels), "columns": columns, "source": self.source}
        return {**about, **({"files": self.files} if self.files else {})}

    def score(
        self, predictions: NDArray[np.floating], labels: NDArray[np.number] | Sequence[float | int]
    ) -> dict[str, float]:
        """Metrics of logits `(rows, num_labels)` against labels `(rows,)`, as fractions, plus their mean as 'score'."""
        return task_metrics.evaluate(self.spec, predictions, np.asarray(labels))
