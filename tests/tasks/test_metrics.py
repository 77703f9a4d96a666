import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.errors import DataError, ModelError
from thresher.tasks import TaskSpec
from thresher.tasks.metrics import evaluate

BINARY = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy", "f1"))
THREE = TaskSpec("nli", "text", None, ("yes", "maybe", "no"), ("accuracy",))
TOPICS = TaskSpec("topics", "text", None, ("a", "b", "c"), ("micro_f1", "macro_f1"), means="labels")
ONE_TOPIC = TaskSpec("one", "text", None, ("a",), ("micro_f1", "macro_f1"), means="labels")
NUMBERS = TaskSpec("stars", "text", None, (), ("pearson", "spearman"))


def test_accuracy_and_f1_by_hand() -> None:
    # predictions 1 1 0 0, labels 1 0 0 1: one of each kind of hit and miss
    logits = np.array([[0, 1], [0, 1], [1, 0], [1, 0]], dtype=np.float32)
    assert evaluate(BINARY, logits, np.array([1, 0, 0, 1])) == {"accuracy": 0.5, "f1": 0.5, "score": 0.5}


def test_f1_without_positives_is_zero_and_silent() -> None:
    assert evaluate(BINARY, np.array([[1.0, 0.0]] * 2), np.array([0, 0])) == {"accuracy": 1.0, "f1": 0.0, "score": 0.5}


def test_three_classes() -> None:
    assert evaluate(THREE, np.eye(3), np.array([0, 1, 0]))["accuracy"] == pytest.approx(2 / 3)


def test_correlations_by_hand() -> None:
    # a monotone curve: ranks agree perfectly, values do not
    predicted, labels = np.array([1.0, 4.0, 9.0, 16.0]), np.array([1.0, 2.0, 3.0, 4.0])
    scores = evaluate(NUMBERS, predicted[:, None], labels)
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["pearson"] == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
    assert scores["score"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)
    assert evaluate(NUMBERS, predicted, labels) == scores


@pytest.mark.parametrize(
    ("predicted", "labels"),
    [([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]), ([1.0], [1.0])],
)
def test_undefined_correlation_is_zero(predicted: list[float], labels: list[float]) -> None:
    assert evaluate(NUMBERS, np.array(predicted), np.array(labels)) == {"pearson": 0.0, "spearman": 0.0, "score": 0.0}


def test_nearly_constant_predictions_do_not_warn() -> None:
    predicted = np.array([1.0, 1.0, 1.0 + 1e-15])
    assert -1 <= evaluate(NUMBERS, predicted, np.array([1.0, 2.0, 3.0]))["pearson"] <= 1


def test_unusable_predictions() -> None:
    with pytest.raises(ModelError, match="NaN or infinite for 1 of 2 rows of films; check its weights"):
        evaluate(BINARY, np.array([[0.0, np.nan], [1.0, 0.0]]), np.array([0, 1]))
    with pytest.raises(DataError, match="films has 0 rows to score"):
        evaluate(BINARY, np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), expected \(2, 2\)"):
        evaluate(BINARY, np.zeros((2, 3)), np.zeros(2))


@pytest.mark.parametrize("seed", range(20))
def test_accuracy_and_f1_are_those_of_scikit_learn(seed: int) -> None:
    """To the last bit, also where a class or label is never there or never found."""
    from sklearn.metrics import accuracy_score, f1_score

    draw = np.random.default_rng(seed)
    rows, often, asked = int(draw.integers(1, 30)), draw.random(3), {"zero_division": 0.0}
    labels = (draw.random((rows, 3)) < often).astype(int)
    logits = draw.normal(size=(rows, 3)) + 3 * (draw.random(3) - 0.5)
    found = evaluate(TOPICS, logits, labels)
    assert found["micro_f1"] == f1_score(labels, logits > 0, average="micro", **asked)
    assert found["macro_f1"] == f1_score(labels, logits > 0, average="macro", **asked)
    found = evaluate(ONE_TOPIC, logits[:, :1], labels[:, :1])
    assert found["micro_f1"] == found["macro_f1"] == f1_score(labels[:, 0], logits[:, 0] > 0, **asked)
    found = evaluate(BINARY, logits[:, :2], labels[:, 0])
    predicted = logits[:, :2].argmax(axis=1)
    assert found["accuracy"] == accuracy_score(labels[:, 0], predicted)
    assert found["f1"] == f1_score(labels[:, 0], predicted, **asked)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=20))
def test_scores_stay_in_range(rows: list[tuple[bool, float, float]]) -> None:
    logits = np.array([row[1:] for row in rows])
    labels = np.array([int(row[0]) for row in rows])
    assert all(0 <= value <= 1 for value in evaluate(BINARY, logits, labels).values())
    assert all(-1 <= round(value, 9) <= 1 for value in evaluate(NUMBERS, logits[:, :1], logits[:, 1]).values())
