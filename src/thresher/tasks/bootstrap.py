"""The paired bootstrap: how sure a difference in quality between models on the same rows is.

Rows are drawn with replacement, the same ones for every model, so that what a row's difficulty adds to both scores
cancels. A draw is written as counts: how often it has each row. Every metric is computed from counts, for all draws at
once; `tests/tasks/test_bootstrap.py` compares with the plain metric on the rows drawn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.tasks.task import TaskSpec

Floats = NDArray[np.float64]
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
    spec: TaskSpec, dense: NDArray[Any], pruned: NDArray[Any], labels: NDArray[Any], *, seed: int = 0
) -> Drop:
    """The drop and its 95% interval. dense, pruned: (rows, outputs); labels: (rows,)."""
    draws = drawn_drops(spec, dense, [pruned], labels, seed=seed)[:, 0]
    low, high = np.quantile(draws, [0.025, 0.975])
    return Drop(observed_drop(spec, dense, pruned, labels), float(low), float(high), len(labels))


def observed_drop(spec: TaskSpec, dense: NDArray[Any], pruned: NDArray[Any], labels: NDArray[Any]) -> float:
    once = np.ones((1, len(labels)))
    return float((scores(spec, dense, labels, once) - scores(spec, pruned, labels, once))[0])


def drawn_drops(
    spec: TaskSpec,
    dense: NDArray[Any],
    pruned: Sequence[NDArray[Any]],
    labels: NDArray[Any],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """(draws, models) drops of several pruned models against the dense one, all on the same drawn rows."""
    found = []
    for counts in drawn_counts(len(labels), draws=draws, seed=seed):
        base = scores(spec, dense, labels, counts)
        found.append(np.stack([base - scores(spec, logits, labels, counts) for logits in pruned], axis=1))
    return np.concatenate(found)


def scores(spec: TaskSpec, logits: NDArray[Any], labels: NDArray[Any], counts: Floats) -> Floats:
    """(draws,) the task's score on rows repeated `counts` times. logits: (rows, outputs), counts: (draws, rows)."""
    if spec.regression:
        predicted = np.asarray(logits, dtype=np.float64).reshape(-1)
        found = [_correlation(name, predicted, np.asarray(labels, dtype=np.float64), counts) for name in spec.metrics]
    else:
        found = [_class_metric(name, np.asarray(logits).argmax(axis=1), labels, counts) for name in spec.metrics]
    return np.mean(found, axis=0)  # type: ignore[no-any-return]  # numpy's mean is typed as Any


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
