"""A dense model below chance is said to be, and no other."""

import pytest

from thresher.tasks.chance import below_chance
from thresher.tasks.task import TaskSpec

CLASSES = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy",))
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
