"""A dense model below chance is said to be, and no other; and rows that can judge none."""

import pytest

from thresher.tasks.chance import below_chance, same_labels
from thresher.tasks.task import Example, TaskSpec

CLASSES = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy",))
PAIRS = TaskSpec("films", "text", "pair", (), ("spearman",), means="embedding")
BOTH = TaskSpec("films", "text", None, (), ("pearson", "spearman"))
VALUES = TaskSpec("films", "text", None, (), ("pearson",))


@pytest.mark.parametrize(("accuracy", "rows", "said"), [(0.195, 200, True), (0.45, 100, False), (0.45, 2000, True)])
def test_below_chance_by_more_than_rows_explain(accuracy: float, rows: int, said: bool) -> None:
    texts = below_chance(CLASSES, {"accuracy": accuracy, "score": accuracy}, rows=rows)
    assert len(texts) == said
    if said:
        assert f"right on {100 * accuracy:.1f}% of the selection rows, and guessing would be on 50.0%" in texts[0]
        assert "are its outputs bad, good, in this order? If not, say it with --class-names" in texts[0]


def test_values_have_no_chance() -> None:
    assert below_chance(VALUES, {"pearson": -0.9, "score": -0.9}, rows=1000) == []


@pytest.mark.parametrize(
    ("spec", "labels", "said"),
    [
        (PAIRS, (0.5, 0.5), "the test rows all have the label 0.5, in which there is no order to find: spearman is 0"),
        (VALUES, (1.0, 1.0), "the test rows all have the label 1.0, in which there is no order to find: pearson is 0"),
        (BOTH, (1.0, 1.0), "in which there is no order to find: pearson and spearman are 0 whatever a model says"),
        (PAIRS, (0.5, 0.6), None),
        (PAIRS, (None, None), None),
        (CLASSES, (1, 1), None),
    ],
)
def test_rows_without_an_order(spec: TaskSpec, labels: tuple[float | None, ...], said: str | None) -> None:
    (text, *others) = [*same_labels(spec, [Example("a", "b", label) for label in labels], split="test"), ""]
    assert said in text and others == [""] if said else text == ""
