"""The paired bootstrap: how sure a difference in quality between models on the same rows is.

Rows are drawn with replacement, the same ones for every model, so that what a row's difficulty adds to both scores
cancels; of a reranker's labelled rows whole queries are drawn. A draw is written as counts: how often it has each row.
Every metric is computed from counts, for all draws at once; `tests/tasks/test_bootstrap.py` compares with the plain
metric on the rows drawn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import OF_TOKENS
from thresher.tasks.metrics import cosines, pair_cosines
from thresher.tasks.of_tokens import row_parts, score_of_parts
from thresher.tasks.ranking import by_query
from thresher.tasks.task import TaskSpec
from thresher.tasks.truth import Truth, as_truth

Floats = NDArray[np.float64]
Labels = Truth | NDArray[Any]
DRAWS = 2000
CHUNK = 2**22  # counts held at a time: a test split of 40,000 rows times 2,000 draws would not fit


@dataclass(frozen=True)
class Drop:
    """Score of the dense model minus score of the pruned one, with the central 95% of the bootstrap's draws."""

    drop: float
    low: float
    high: float
    rows: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired_drop(
    spec: TaskSpec,
    dense: NDArray[Any],
    pruned: NDArray[Any],
    labels: Labels,
    *,
    pruned_labels: Labels | None = None,
    seed: int = 0,
) -> Drop:
    """The drop and its 95% interval. dense, pruned: (inputs, outputs); labels: (rows,) or a Truth. `pruned_labels`: the
    pruned model's, where its answers are withheld by a threshold of its own."""
    whole = judged(spec, dense, labels)
    part = judged(spec, pruned, labels if pruned_labels is None else pruned_labels)
    draws = _drawn(spec, whole, [part], labels, draws=DRAWS, seed=seed)[:, 0]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Drop(_observed(spec, whole, part, labels), float(low), float(high), as_truth(labels).rows)


def observed_drop(spec: TaskSpec, dense: NDArray[Any], pruned: NDArray[Any], labels: Labels) -> float:
    return _observed(spec, judged(spec, dense, labels), judged(spec, pruned, labels), labels)


def drawn_drops(
    spec: TaskSpec,
    dense: NDArray[Any],
    pruned: Sequence[NDArray[Any]],
    labels: Labels,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """(draws, models) drops of several pruned models against the dense one, all on the same drawn rows."""
    parts = [judged(spec, logits, labels) for logits in pruned]
    return _drawn(spec, judged(spec, dense, labels), parts, labels, draws=draws, seed=seed)


def judged(spec: TaskSpec, logits: NDArray[Any], labels: Labels) -> NDArray[Any]:
    """What can be drawn row by row: outputs as they are, and of outputs for every token each row's part in the metrics,
    (rows, 3)."""
    return row_parts(spec, np.asarray(logits), as_truth(labels))[0] if spec.means in OF_TOKENS else np.asarray(logits)


def _observed(spec: TaskSpec, dense: NDArray[Any], pruned: NDArray[Any], labels: Labels) -> float:
    once = np.ones((1, as_truth(labels).units))
    return float((scores(spec, dense, labels, once) - scores(spec, pruned, labels, once))[0])


def _drawn(
    spec: TaskSpec, dense: NDArray[Any], pruned: Sequence[NDArray[Any]], labels: Labels, *, draws: int, seed: int
) -> Floats:
    found = []
    for counts in drawn_counts(as_truth(labels).units, draws=draws, seed=seed):
        base = scores(spec, dense, labels, counts)
        found.append(np.stack([base - scores(spec, one, labels, counts) for one in pruned], axis=1))
    return np.concatenate(found)


def scores(spec: TaskSpec, logits: NDArray[Any], labels: Labels, counts: Floats) -> Floats:
    """(draws,) the task's score on units repeated `counts` times. logits: (inputs, outputs), or what `judged` makes of
    outputs for tokens; counts: (draws, units)."""
    truth, outputs = as_truth(labels), np.asarray(logits)
    if spec.means in OF_TOKENS:
        return score_of_parts(spec, outputs, counts, labelled=truth.labelled)
    if not truth.labelled:
        return _agreement(spec, outputs, truth.values, counts)
    values = truth.values
    if spec.means == "score":
        assert truth.groups is not None  # a spec's truth has them
        of_query = by_query(outputs.reshape(-1).astype(np.float64), values.astype(np.float64), truth.groups)
        found = [_mean_of_known(of_query[name], counts) for name in spec.metrics]
    elif spec.means in ("value", "embedding"):
        predicted = pair_cosines(outputs) if spec.means == "embedding" else outputs.astype(np.float64).reshape(-1)
        found = [_correlation(name, predicted, values.astype(np.float64), counts) for name in spec.metrics]
    elif spec.means == "labels":
        found = [_label_metric(name, outputs > 0, values > 0, counts) for name in spec.metrics]
    else:
        found = [_class_metric(name, outputs.argmax(axis=1), values, counts) for name in spec.metrics]
    return np.mean(found, axis=0)  # type: ignore[no-any-return]  # numpy's mean is typed as Any


def _agreement(spec: TaskSpec, outputs: NDArray[Any], dense: NDArray[Any], counts: Floats) -> Floats:
    """The 'score' of rows without labels, from counts: as in `metrics`."""
    if spec.means in ("value", "score"):
        one, other = (found.astype(np.float64).reshape(-1) for found in (outputs, dense))
        return _correlation("pearson", one, other, counts)
    if spec.means == "embedding":
        of_row = cosines(outputs, dense)
    elif spec.means == "labels":
        of_row = ((outputs > 0) == (dense > 0)).mean(axis=1)
    else:
        of_row = (outputs.argmax(axis=1) == dense.argmax(axis=1)).astype(np.float64)
    return _mean_of_known(of_row, counts)


def _mean_of_known(values: Floats, counts: Floats) -> Floats:
    """Weighted means that leave out NaN, for a query without a relevant row."""
    known = np.isfinite(values)
    return _ratio(counts[:, known] @ values[known], counts[:, known].sum(axis=1))


def drawn_counts(rows: int, *, draws: int, seed: int) -> Iterator[Floats]:
    """(draws, rows) how often each row is drawn, a chunk of draws at a time."""
    generator = np.random.default_rng(seed)
    size = max(1, CHUNK // rows)
    for start in range(0, draws, size):
        chosen = (generator.integers(rows, size=rows) for _ in range(min(size, draws - start)))
        yield np.stack([np.bincount(one, minlength=rows) for one in chosen]).astype(np.float64)


def _class_metric(name: str, predicted: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    right = predicted == labels
    if name == "accuracy":
        return counts @ right.astype(np.float64) / counts.sum(axis=1)  # type: ignore[no-any-return]
    both = counts @ (right & (labels == 1)).astype(np.float64)
    either = counts @ ((predicted == 1).astype(np.float64) + (labels == 1))
    return _ratio(2 * both, either)


def _label_metric(name: str, predicted: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    both = counts @ (predicted & labels).astype(np.float64)  # (draws, labels)
    either = counts @ (predicted.astype(np.float64) + labels)
    if name == "micro_f1":
        return _ratio(2 * both.sum(axis=1), either.sum(axis=1))
    return _ratio(2 * both, either).mean(axis=1)  # type: ignore[no-any-return]


def _correlation(name: str, predicted: Floats, labels: Floats, counts: Floats) -> Floats:
    if name == "spearman":
        return _pearson(_ranks(predicted, counts), _ranks(labels, counts), counts)
    return _pearson(np.broadcast_to(predicted, counts.shape), np.broadcast_to(labels, counts.shape), counts)


def _ranks(values: Floats, counts: Floats) -> Floats:
    """(draws, rows) rank of each row among the drawn ones; equal values share the mean of their ranks."""
    _, group = np.unique(values, return_inverse=True)
    sizes = np.stack([np.bincount(group, weights=one) for one in counts])
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]


def _pearson(x: Floats, y: Floats, counts: Floats) -> Floats:
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    spread = (counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1)
    return _ratio((counts * x * y).sum(axis=1), np.sqrt(spread))


def _ratio(above: Floats, below: Floats) -> Floats:
    """0 where a metric is undefined, as in `metrics`."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
