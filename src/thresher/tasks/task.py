"""What a task is: its rows, its labels and its metrics, wherever the data come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import MEANINGS, OF_TOKENS
from thresher.tasks import metrics as task_metrics
from thresher.tasks.truth import Label, Truth, has_labels, truth_of

if TYPE_CHECKING:
    from thresher.tasks.encode import EncodedSet


@dataclass(frozen=True)
class Example:
    """One row. The label is a class index, a float (a value, or a reranker's relevance), a 0 or 1 for each of several
    labels, the answers to a question, a tag for each word, or None where the row has none.

    `group` is the query's identity; without one it is the text. Of questions, whose `pair` is the context, it is the
    article. `words` are those that have tags: the text is they, with a space between two."""

    text: str
    pair: str | None
    label: Label
    group: str | None = None
    words: tuple[str, ...] = ()


def labelled(rows: Sequence[Example], *, name: str) -> bool:
    """Whether the rows of a split have labels: all of them, or none. `name` is the task's."""
    return has_labels([row.label for row in rows], name=name)


def model_inputs(means: str, rows: Sequence[Example], *, prompt: str = "") -> list[Example]:
    """What a model whose outputs have this meaning reads of rows: see `TaskSpec.inputs`."""
    if means != "embedding":
        return list(rows)
    texts = [text for row in rows for text in (row.text, row.pair)]
    return [Example(prompt + text, None, None) for text in texts if text is not None]


def truncation_of(means: str) -> str:
    """Which text of a pair that is too long is cut: a reranker's query stays whole."""
    return "only_second" if means == "score" else "longest_first"


@dataclass(frozen=True)
class TaskSpec:
    """What a model for the task must predict, and how it is judged.

    `means` is what outputs are, one of `core.heads.MEANINGS`; not given, it is classes, or a value where there are no
    labels. The mean of `metrics` is the score of labelled rows; rows without labels are judged by their agreement with
    the dense model.

    `class_order` says who put `labels` in their order: the "task" itself, the "user", or, knowing nothing, the
    "alphabet".
    """

    name: str
    text_column: str
    pair_column: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    label_column: str = "label"
    means: str = ""
    group_column: str | None = None
    separator: str | None = None  # between several labels in one cell
    class_order: str = "task"

    def __post_init__(self) -> None:
        means = self.means or ("classes" if self.labels else "value")
        object.__setattr__(self, "means", means)
        if means not in MEANINGS:
            raise ValueError(f"means = {means!r} of task {self.name} is not one of: {', '.join(MEANINGS)}")
        named = means in ("classes", "labels", "tags")
        if named != bool(self.labels):
            needs = "names of labels" if named else "no labels"
            raise ValueError(f"labels = {self.labels} of task {self.name}: means = '{means}' needs {needs}")
        kind, known = task_metrics.LABELLED[means]
        if not self.metrics or not set(self.metrics) <= set(known):
            raise ValueError(f"metrics = {self.metrics} of task {self.name}: {kind} knows {', '.join(known)}")
        if "f1" in self.metrics and means == "classes" and len(self.labels) != 2:
            rule = f"f1 needs two labels, and there are {len(self.labels)}"
            raise ValueError(f"metrics = {self.metrics} of task {self.name}: {rule}; use accuracy")

    @property
    def regression(self) -> bool:
        return self.means == "value"

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one per class, label or tag, a single one for a value or score, two for a span's start
        and end; 0 says that the model's own width decides, as an embedding's."""
        fixed = {"embedding": 0, "span": 2}
        return fixed.get(self.means, max(1, len(self.labels)))

    @property
    def truncation(self) -> str:
        """Which text of a pair that is too long is cut: a reranker's query stays whole."""
        return truncation_of(self.means)

    def inputs(self, rows: Sequence[Example], *, prompt: str = "") -> list[Example]:
        """What the model reads of rows: the rows, or for embeddings of pairs the texts one by one, without labels:
        text, pair, text, pair, ... An embedding's texts begin with the `prompt`."""
        return model_inputs(self.means, rows, prompt=prompt)

    def training_rows(self, rows: Sequence[Example], *, prompt: str = "") -> list[Example]:
        """Inputs with the labels that a loss can use: embeddings learn from the dense model alone, and so do scores
        whose relevance is graded."""
        graded = self.means == "score" and any(row.label not in (0, 1, None) for row in rows)
        if self.means != "embedding" and not graded:
            return list(rows)
        return [Example(row.text, row.pair, None, row.group) for row in self.inputs(rows, prompt=prompt)]

    def truth(
        self, rows: Sequence[Example], *, dense: NDArray[Any] | None = None, data: "EncodedSet | None" = None
    ) -> Truth:
        """What the outputs for rows are judged against: their labels, or without any the outputs of the dense model,
        (inputs, outputs). Outputs for every token can be read only with `data`, the encoded rows."""
        groups = [row.text if row.group is None else row.group for row in rows] if self.means == "score" else None
        labels = [row.label for row in rows]
        found = truth_of(labels, groups=groups, dense=dense, name=self.name, whole=self.means in OF_TOKENS)
        if self.means not in OF_TOKENS or data is None:
            return found
        texts = tuple(row.text if row.pair is None else row.pair for row in rows)
        return replace(found, windows=data.windows, texts=texts)


@dataclass(frozen=True)
class Task:
    """A task with its data. `selection` chooses checkpoints and settings; `test` is only ever reported. `left_out` are
    training rows that are not used, because they are pieces of selection rows; `more` are rows without labels, on which
    training learns from the dense model alone."""

    spec: TaskSpec
    train: list[Example]
    selection: list[Example]
    test: dict[str, list[Example]]
    source: str
    left_out: list[Example] = field(default_factory=list)
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # the user's own: path and sha256 of each
    more: list[Example] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """What a saved run remembers of its task."""
        spec = self.spec
        columns = {"text": spec.text_column, "pair": spec.pair_column, "label": spec.label_column}
        columns |= {} if spec.group_column is None else {"group": spec.group_column}
        about = {"name": spec.name, "labels": list(spec.labels), "columns": columns, "source": self.source}
        about |= {} if spec.means in ("classes", "value") else {"means": spec.means}
        about |= {} if spec.separator is None else {"separator": spec.separator}
        return {**about, **({"files": self.files} if self.files else {})}

    def score(
        self, predictions: NDArray[np.floating], labels: Truth | NDArray[np.number] | Sequence[float | int]
    ) -> dict[str, float]:
        """Metrics of outputs `(inputs, num_labels)` against labels `(rows,)` or what `TaskSpec.truth` gives, as
        fractions, with 'score' to compare by."""
        return task_metrics.evaluate(self.spec, predictions, labels)
