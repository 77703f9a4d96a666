"""Quality metrics as fractions in 0..1 (correlations in -1..1), with the paper's average of them as 'score'."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import OF_TOKENS
from thresher.errors import DataError, PredictionError
from thresher.tasks.of_tokens import TOKEN_METRICS, token_metrics
from thresher.tasks.ranking import RANK_METRICS, mean_by_query, order_agreement
from thresher.tasks.truth import Truth, as_truth

if TYPE_CHECKING:
    from thresher.tasks.task import TaskSpec

CLASS_METRICS = ("accuracy", "f1")
REGRESSION_METRICS = ("pearson", "spearman")
LABEL_METRICS = ("micro_f1", "macro_f1")
# By what outputs mean: the kind of task, and its metrics for rows with labels.
LABELLED = {
    "classes": ("classification", CLASS_METRICS),
    "value": ("regression", REGRESSION_METRICS),
    "labels": ("multi-label classification", LABEL_METRICS),
    "score": ("reranking", RANK_METRICS),
    "embedding": ("embedding", ("spearman",)),
    "span": ("question answering", TOKEN_METRICS["span"]),
    "tags": ("tagging", TOKEN_METRICS["tags"]),
}
NEIGHBOURS_OF = 2000  # texts at most, so that all pairs of them fit into memory


def evaluate(
    spec: "TaskSpec", outputs: NDArray[Any], labels: Truth | NDArray[Any] | Sequence[float | int]
) -> dict[str, float]:
    """Every metric of the task and 'score', the mean of the spec's own, for outputs `(inputs, num_labels)`.

    `labels` are `(rows,)` or a `Truth`. A regression may also give its predictions as `(rows,)`; outputs for tokens are
    `(total tokens, num_labels)`, the windows of all rows end to end. Rows without labels are judged by their agreement
    with the dense model: 'score' is then Pearson's correlation of scores and values, the mean cosine of embeddings, F1
    of answers, or the share of the same decisions.
    """
    truth = as_truth(labels)
    if spec.means in OF_TOKENS:
        found = token_metrics(spec, np.asarray(outputs), truth)
        own = spec.metrics if truth.labelled else ("agreement",)
        return {**found, "score": sum(found[name] for name in own) / len(own)}
    outputs = checked(spec, outputs, truth)
    if not truth.labelled:
        found = _agreement(spec, outputs, truth)
        return {**found, "score": next(iter(found.values()))}
    if spec.means == "score":
        assert truth.groups is not None  # a spec's truth has them
        found = mean_by_query(outputs[:, 0], truth.values.astype(np.float64), truth.groups)
    elif spec.means == "embedding":
        found = {"spearman": correlation("spearman", pair_cosines(outputs), truth.values)}
    elif spec.means == "value":
        found = {name: correlation(name, outputs[:, 0], truth.values) for name in spec.metrics}
    elif spec.means == "labels":
        found = {name: _label_metric(name, outputs > 0, truth.values) for name in spec.metrics}
    else:
        found = {name: _class_metric(name, outputs.argmax(axis=1), truth.values) for name in spec.metrics}
    return {**found, "score": sum(found[name] for name in spec.metrics) / len(spec.metrics)}


def checked(spec: "TaskSpec", outputs: NDArray[Any], truth: Truth) -> NDArray[Any]:
    """Outputs as (inputs, num_labels), where they fit the truth and are numbers."""
    outputs = np.asarray(outputs)
    if truth.rows == 0:
        raise DataError(f"task {spec.name} has 0 rows to score; give a split with at least one row")
    if spec.num_labels == 1 and outputs.ndim == 1:
        outputs = outputs[:, None]
    inputs = 2 * truth.rows if spec.means == "embedding" and truth.labelled else truth.rows
    width = spec.num_labels or (outputs.shape[-1] if outputs.ndim == 2 else 1)
    if outputs.shape != (inputs, width):
        raise ValueError(f"logits of shape {outputs.shape}, expected {(inputs, width)} for {spec.name}")
    unusable = int((~np.isfinite(outputs)).any(axis=1).sum())
    if unusable:
        # argmax and rank would turn NaN into an ordinary-looking score.
        raise PredictionError(
            f"the model's predictions are NaN or infinite for {unusable} of {inputs} rows of {spec.name}; "
            "check its weights, or train with a lower learning rate"
        )
    return outputs


def cosines(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """(rows,) cosine of each row of both, (rows, width); 0 where one of them is zero."""
    return np.einsum("rw,rw->r", _unit(ours), _unit(theirs))  # type: ignore[no-any-return]  # typed as Any


def pair_cosines(outputs: NDArray[Any]) -> NDArray[np.float64]:
    """(rows,) cosine of the two embeddings of each row. outputs: (2 rows, width), text, pair, text, pair, ..."""
    return cosines(outputs[0::2], outputs[1::2])


def _agreement(spec: "TaskSpec", outputs: NDArray[Any], truth: Truth) -> dict[str, float]:
    """How near outputs are to the dense model's, what decides first."""
    dense = truth.values
    if spec.means == "embedding":
        return {"cosine": float(cosines(outputs, dense).mean()), "neighbours": neighbours_kept(outputs, dense)}
    if spec.means == "labels":
        return {"agreement": float(((outputs > 0) == (dense > 0)).mean())}
    if spec.means == "classes":
        return {"agreement": float((outputs.argmax(axis=1) == dense.argmax(axis=1)).mean())}
    found = {"pearson": correlation("pearson", outputs[:, 0], dense[:, 0])}
    if truth.groups is None:
        return found
    return {**found, **order_agreement(outputs[:, 0], dense[:, 0], truth.groups)}


def neighbours_kept(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """The share of texts whose nearest other text is the same in both, (rows, width); of the first 2,000."""
    nearest = []
    for vectors in (ours[:NEIGHBOURS_OF], theirs[:NEIGHBOURS_OF]):
        unit = _unit(vectors)
        near = unit @ unit.T
        np.fill_diagonal(near, -np.inf)
        nearest.append(near.argmax(axis=1))
    return float((nearest[0] == nearest[1]).mean())


def _unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _class_metric(name: str, predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    if name == "accuracy":
        return float((predicted == labels).mean())
    return float(_f1(predicted == 1, labels == 1))


def _label_metric(name: str, predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """F1 over all decisions, or the mean of each label's; both (rows, labels)."""
    if name == "micro_f1":
        predicted, labels = predicted.reshape(-1), labels.reshape(-1)
    return float(_f1(predicted, labels > 0).mean())


def _f1(predicted: NDArray[np.bool_], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(labels,) F1 of decisions (rows, labels), or one number of (rows,); 0 where nothing is there and nothing found.

    As scikit-learn has it, whose import alone would take most of a second of every command that scores.
    """
    both = 2.0 * (predicted & labels).sum(axis=0)
    either = predicted.sum(axis=0) + labels.sum(axis=0)
    return np.divide(both, either, out=np.zeros_like(both), where=either > 0)  # type: ignore[no-any-return]


def correlation(name: str, predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """Pearson or Spearman; 0 where it is undefined, because a constant prediction orders nothing."""
    from scipy.stats import pearsonr, spearmanr

    predicted, labels = predicted.astype(np.float64), labels.astype(np.float64)
    if len(labels) < 2 or np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    with warnings.catch_warnings():
        # Nearly constant predictions make scipy warn about precision; the value it returns is still the best there is.
        warnings.simplefilter("ignore")
        value = float((pearsonr if name == "pearson" else spearmanr)(predicted, labels).statistic)
    return value if math.isfinite(value) else 0.0
