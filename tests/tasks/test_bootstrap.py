"""The paired bootstrap: counts give the plain metric of the drawn rows, and known spreads come out."""

import numpy as np
import pytest

from thresher.tasks import bootstrap
from thresher.tasks.bootstrap import drawn_drops, observed_drop, paired_drop, scores
from thresher.tasks.metrics import evaluate
from thresher.tasks.task import TaskSpec

CLASSES = TaskSpec("classes", "text", None, ("no", "yes"), ("accuracy", "f1"))
ACCURACY = TaskSpec("classes", "text", None, ("no", "yes"), ("accuracy",))
VALUES = TaskSpec("values", "text", None, (), ("pearson", "spearman"))


def logits_for(predicted: np.ndarray) -> np.ndarray:
    return np.eye(2)[predicted]


@pytest.mark.parametrize("spec", [CLASSES, VALUES], ids=["classes", "values"])
def test_counts_give_the_plain_metric_of_the_rows_drawn(spec: TaskSpec) -> None:
    draw = np.random.default_rng(0)
    rows = 23
    if spec.regression:  # few different values: ties in both
        labels, logits = draw.integers(0, 6, rows) / 2, draw.integers(0, 8, (rows, 1)).astype(float)
    else:
        labels, logits = draw.integers(0, 2, rows), draw.normal(size=(rows, 2))
    chosen = draw.integers(0, rows, (12, rows))
    counts = np.stack([np.bincount(one, minlength=rows) for one in chosen]).astype(float)
    wanted = [evaluate(spec, logits[one], labels[one])["score"] for one in chosen]
    np.testing.assert_allclose(scores(spec, logits, labels, counts), wanted, atol=1e-12)


def test_undefined_metrics_are_zero() -> None:
    labels = np.zeros(4, dtype=int)
    assert scores(CLASSES, logits_for(labels), labels, np.ones((1, 4))) == pytest.approx(0.5)  # accuracy 1, F1 0
    assert scores(VALUES, np.ones((4, 1)), np.arange(4.0), np.ones((1, 4))) == 0.0


def test_the_spread_is_that_of_the_rows_that_changed() -> None:
    """100 of 1,000 rows lost, 60 won: the drop is 4 points, its standard error sqrt((0.16 - 0.04^2) / 1000)."""
    labels = np.ones(1000, dtype=int)
    dense, pruned = labels.copy(), labels.copy()
    pruned[:100], dense[100:160] = 0, 0
    found = paired_drop(ACCURACY, logits_for(dense), logits_for(pruned), labels)
    error = np.sqrt((0.16 - 0.04**2) / 1000)
    assert found.drop == pytest.approx(0.04) and found.rows == 1000
    assert found.low == pytest.approx(0.04 - 1.96 * error, abs=0.0025)
    assert found.high == pytest.approx(0.04 + 1.96 * error, abs=0.0025)


def test_it_agrees_with_scipy() -> None:
    from scipy.stats import bootstrap as of_scipy

    draw = np.random.default_rng(3)
    labels = draw.integers(0, 2, 200)
    dense, pruned = np.where(draw.random((2, 200)) < 0.85, labels, 1 - labels)
    ours = paired_drop(ACCURACY, logits_for(dense), logits_for(pruned), labels)
    gains = (dense == labels).astype(float) - (pruned == labels)
    theirs = of_scipy((gains,), np.mean, n_resamples=2000, method="percentile", rng=draw).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)


def test_models_share_their_draws_and_equal_models_never_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    labels, logits, other = draw.integers(0, 2, 50), draw.normal(size=(50, 2)), draw.normal(size=(50, 2))
    found = drawn_drops(CLASSES, logits, [logits, other, other], labels, draws=100)
    assert found.shape == (100, 3) and not found[:, 0].any()
    np.testing.assert_array_equal(found[:, 1], found[:, 2])
    assert abs(found[:, 1].mean() - observed_drop(CLASSES, logits, other, labels)) < 0.05
    monkeypatch.setattr(bootstrap, "CHUNK", 350)  # seven draws at a time
    np.testing.assert_array_equal(drawn_drops(CLASSES, logits, [logits, other, other], labels, draws=100), found)
