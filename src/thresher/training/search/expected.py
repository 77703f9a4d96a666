"""The drop to expect of a pruned model: the drop in score with most of the labels' noise taken out.

Where both models predict the same class, pruning costs nothing, whatever the label is. Where they differ, one label
decides between a loss and a gain, although both models are near their decision boundary there and either label was
likely. So labels enter through probabilities instead: the logits of both models are blended, with the two weights that
make all labels most likely, and either model's score is its expectation under the blend. If the pruned model knows as
much as the dense one, both weigh the same and the drop to expect is about zero; the more pruning has cost, the less the
pruned logits weigh.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thresher.tasks.bootstrap import DRAWS, Floats, drawn_counts, drawn_drops, observed_drop
from thresher.tasks.task import TaskSpec
from thresher.tasks.truth import Truth, as_truth

NEWTON_STEPS = 25
RIDGE = 0.1  # a weak pull to zero, so that there are best weights even if both models are the same or never wrong
NUDGE = 1e-4  # of a weight, for the slope of the drop by it


@dataclass(frozen=True)
class Expected:
    """drops: (models,) expected drops; draws: (draws, models) the same of drawn rows, the same ones for all models."""

    drops: Floats
    draws: Floats


def expected_drops(
    spec: TaskSpec,
    dense: NDArray[np.floating],
    pruned: Sequence[NDArray[np.floating]],
    labels: Truth | NDArray[np.integer],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Expected:
    """dense and each of pruned: (rows, outputs) logits; labels: (rows,) or a Truth."""
    truth = as_truth(labels)
    # Correlations weigh every row: no decisions, nothing to smooth. Only classes have labels that the blend can fit.
    if spec.means != "classes" or not truth.labelled:
        drops = [observed_drop(spec, dense, logits, labels) for logits in pruned]
        return Expected(np.array(drops), drawn_drops(spec, dense, pruned, labels, draws=draws, seed=seed))
    rows = truth.rows
    found = [_Blend(spec, dense, logits, truth.values) for logits in pruned]
    return Expected(
        np.array([one.drop(np.ones((1, rows)))[0] for one in found]),
        np.concatenate(
            [
                np.stack([one.drawn(counts) for one in found], axis=1)
                for counts in drawn_counts(rows, draws=draws, seed=seed)
            ]
        ),
    )


class _Blend:
    """Class probabilities from the logits of a dense and a pruned model, weighted to suit the labels."""

    def __init__(
        self,
        spec: TaskSpec,
        dense: NDArray[np.floating],
        pruned: NDArray[np.floating],
        labels: NDArray[np.integer],
    ) -> None:
        both = np.stack([dense, pruned], axis=-1).astype(np.float64)  # (rows, classes, 2)
        both -= both.mean(axis=1, keepdims=True)
        self._spec, self._logits = spec, both / max(float(both.std()), 1e-9)
        self._predicted = np.asarray(dense).argmax(axis=1), np.asarray(pruned).argmax(axis=1)
        self._weights, self._pulls, self._curvature = self._fit(labels)

    def drop(self, counts: Floats, *, nudge: Floats | float = 0.0) -> Floats:
        """(draws,) expected drop with rows repeated `counts` times, (draws, rows), and weights moved by `nudge`."""
        chances = self._chances(self._weights + nudge)
        dense, pruned = (expected_score(self._spec, chances, predicted, counts) for predicted in self._predicted)
        return dense - pruned

    def drawn(self, counts: Floats) -> Floats:
        """(draws,) expected drop of drawn rows. Their weights differ too, by one Newton step from those of all rows."""
        once = np.ones((1, counts.shape[1]))
        nudges = NUDGE * np.eye(2)
        slope = [(self.drop(once, nudge=one) - self.drop(once, nudge=-one))[0] / (2 * NUDGE) for one in nudges]
        of_rows = self._pulls @ np.linalg.solve(self._curvature, np.array(slope))
        return self.drop(counts) + (counts - 1) @ of_rows

    def _fit(self, labels: NDArray[np.integer]) -> tuple[Floats, Floats, Floats]:
        """Most likely weights; (rows, 2) each row's pull on them; (2, 2) how hard all rows hold them."""
        weights = np.full(2, 0.5)
        of_label = self._logits[np.arange(len(labels)), labels]
        for _ in range(NEWTON_STEPS):
            chances = self._chances(weights)
            mean = np.einsum("rc,rcw->rw", chances, self._logits)
            pulls = of_label - mean
            spread = np.einsum("rc,rcw,rcv->wv", chances, self._logits, self._logits) - mean.T @ mean
            curvature = spread + RIDGE * np.eye(2)
            step = np.linalg.solve(curvature, pulls.sum(axis=0) - RIDGE * weights)
            weights = weights + np.clip(step, -1, 1)
            if np.abs(step).max() < 1e-6:
                break
        return weights, pulls, curvature

    def _chances(self, weights: Floats) -> Floats:
        """(rows, classes)"""
        logits = self._logits @ weights
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def expected_score(spec: TaskSpec, chances: Floats, predicted: NDArray[np.integer], counts: Floats) -> Floats:
    """(draws,) the task's score, a ratio of expected counts. chances: (rows, classes); counts: (draws, rows)."""
    right = chances[np.arange(len(predicted)), predicted]
    found = []
    for name in spec.metrics:
        if name == "accuracy":
            found.append(counts @ right / counts.sum(axis=1))
        else:
            yes = (predicted == 1).astype(np.float64)
            found.append(2 * (counts @ (right * yes)) / np.maximum(counts @ (yes + chances[:, 1]), 1e-9))
    return np.mean(found, axis=0)  # type: ignore[no-any-return]  # numpy's mean is typed as Any
