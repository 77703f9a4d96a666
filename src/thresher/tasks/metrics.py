"""Quality metrics as fractions in 0..1 (correlations in -1..1), with the paper's average of them as 'score'."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thresher.errors import DataError, PredictionError

if TYPE_CHECKING:
    from thresher.tasks.task import TaskSpec

CLASS_METRICS = ("accuracy", "f1")
REGRESSION_METRICS = ("pearson", "spearman")


def evaluate(spec: "TaskSpec", logits: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """Every metric of the task for logits `(rows, num_labels)` and labels `(rows,)`, and their mean as 'score'.

    A regression may also give its predictions as `(rows,)`.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if len(labels) == 0:
        raise DataError(f"task {spec.name} has 0 rows to score; give a split with at least one row")
    if spec.regression and logits.ndim == 1:
        logits = logits[:, None]
    if logits.shape != (len(labels), spec.num_labels):
        raise ValueError(f"logits of shape {logits.shape}, expected {(len(labels), spec.num_labels)} for {spec.name}")
    unusable = int((~np.isfinite(logits)).any(axis=1).sum())
    if unusable:
        # argmax and rank would turn NaN into an ordinary-looking score.
        raise PredictionError(
            f"the model's predictions are NaN or infinite for {unusable} of {len(labels)} rows of {spec.name}; "
            "check its weights, or train with a lower learning rate"
        )
    if spec.regression:
        scores = {name: _correlation(name, logits[:, 0], labels) for name in spec.metrics}
    else:
        predicted = logits.argmax(axis=1)
        scores = {name: _class_metric(name, predicted, labels) for name in spec.metrics}
    return {**scores, "score": sum(scores.values()) / len(scores)}


def _class_metric(name: str, predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    # Imported here: scikit-learn takes about a second, and most uses of the package score nothing.
    from sklearn.metrics import accuracy_score, f1_score

    if name == "accuracy":
        return float(accuracy_score(labels, predicted))
    return float(f1_score(labels, predicted, pos_label=1, average="binary", zero_division=0.0))


def _correlation(name: str, predicted: NDArray[Any], labels: NDArray[Any]) -> float:
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
