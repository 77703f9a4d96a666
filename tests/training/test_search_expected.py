"""The expected drop: what it is on hand-sized rows, and how much surer than the plain one it is."""

import numpy as np
import pytest
from search_studies import MRPC, Study

from thresher.tasks.bootstrap import drawn_drops, observed_drop
from thresher.tasks.glue import GLUE_TASKS
from thresher.tasks.task import TaskSpec
from thresher.training.search.expected import expected_drops

SST2, MNLI, STSB = GLUE_TASKS["sst2"], GLUE_TASKS["mnli"], GLUE_TASKS["stsb"]


def logits_of(margins: np.ndarray) -> np.ndarray:
    return np.stack([np.zeros(len(margins)), margins], axis=1)


def rows(count: int, *, classes: int = 2, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model and the labels; classes are as likely as unseen better logits say."""
    draw = np.random.default_rng(seed)
    better = 2 * draw.normal(size=(count, classes))
    labels = (better + draw.gumbel(size=better.shape)).argmax(axis=1)
    return better + noise * draw.normal(size=better.shape), labels


def test_the_same_model_drops_nothing() -> None:
    logits, labels = rows(100)
    found = expected_drops(SST2, logits, [logits, 3 * logits], labels)
    np.testing.assert_allclose(found.drops, 0, atol=1e-12)
    np.testing.assert_allclose(found.draws, 0, atol=1e-9)


def test_certain_labels_give_the_plain_drop() -> None:
    """The dense model is right and sure everywhere: the blend is the labels, and every changed row is a loss."""
    labels = np.arange(200) % 2
    dense = logits_of(np.where(labels == 1, 8.0, -8.0))
    pruned = dense.copy()
    pruned[:10] = pruned[:10, ::-1]
    found = expected_drops(GLUE_TASKS["mrpc"], dense, [pruned], labels)
    assert found.drops[0] == pytest.approx(observed_drop(GLUE_TASKS["mrpc"], dense, pruned, labels), abs=1e-3)


@pytest.mark.parametrize("spec", [SST2, GLUE_TASKS["mrpc"], MNLI], ids=lambda spec: spec.name)
def test_with_many_rows_both_drops_agree(spec: TaskSpec) -> None:
    dense, labels = rows(40_000, classes=spec.num_labels)
    worse = dense + 1.5 * np.random.default_rng(1).normal(size=dense.shape)
    better, _ = rows(40_000, classes=spec.num_labels, noise=0.5)
    found = expected_drops(spec, dense, [worse, better], labels, draws=2)
    plain = [observed_drop(spec, dense, one, labels) for one in (worse, better)]
    assert plain[0] > 0.02 and plain[1] < -0.02
    np.testing.assert_allclose(found.drops, plain, atol=0.006)


def test_the_draws_are_as_wide_as_the_error_and_half_as_wide_as_the_plain_ones() -> None:
    errors, widths, plain = [], [], []
    for seed in range(40):
        study = Study(MRPC, seed)
        model = study.train(0.5)[0]
        found = expected_drops(MRPC.spec, study.dense, [model.logits], study.labels, draws=200)
        drawn = drawn_drops(MRPC.spec, study.dense, [model.logits], study.labels, draws=200)
        errors.append(found.drops[0] - model.true_drop)
        widths.append(found.draws.std())
        plain.append(drawn.std())
    assert np.mean(widths) == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=0.3)
    assert abs(np.mean(errors)) < 0.003
    assert np.mean(widths) < 0.6 * np.mean(plain)


def test_a_regression_has_no_decisions_to_smooth() -> None:
    draw = np.random.default_rng(0)
    labels = draw.normal(size=50)
    dense, pruned = (labels + noise * draw.normal(size=50) for noise in (0.5, 0.6))
    found = expected_drops(STSB, dense[:, None], [pruned[:, None]], labels, draws=20)
    assert found.drops[0] == observed_drop(STSB, dense[:, None], pruned[:, None], labels)
    np.testing.assert_array_equal(found.draws, drawn_drops(STSB, dense[:, None], [pruned[:, None]], labels, draws=20))


def test_it_is_finite_when_a_class_or_all_errors_are_missing() -> None:
    ones = np.ones(5, dtype=np.int64)
    logits = logits_of(np.linspace(-0.1, 3, 5))
    found = expected_drops(GLUE_TASKS["mrpc"], logits, [-logits, 0 * logits], ones)
    assert np.isfinite(found.drops).all() and np.isfinite(found.draws).all()
