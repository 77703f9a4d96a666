"""A pruned model that beats its dense one was trained longer, and that is said; a drop and a gain are called so."""

from typing import Any

import pytest

from thresher.evaluation.gain import gain_notes
from thresher.tasks.said import drop_or_gain


def quality(dense: float, pruned: float) -> dict[str, Any]:
    return {"test": {"dense": {"metrics": {"score": dense}}, "pruned": {"metrics": {"score": pruned}}}}


def test_a_gain_names_longer_training_and_the_fair_control() -> None:
    (said,) = gain_notes(quality(0.88, 0.9123), {"method": "thresher"})
    assert said.startswith("test: pruned scores 3.23 points more than dense, but it was trained longer")
    assert said.endswith("The fair control is the dense model trained as long: --method dense")


@pytest.mark.parametrize(
    ("dense", "pruned", "recipe"),
    [
        (0.88, 0.87, {"method": "thresher"}),
        (0.88, 0.88, {"method": "thresher"}),
        (0.88, 0.90, {"method": "dense"}),  # the control itself
        (0.88, 0.90, {"recipe": "training-free", "max_length": None}),  # no weight was trained
        (0.88, 0.90, None),
    ],
)
def test_nothing_is_said_where_there_is_no_gain_or_no_training(dense: float, pruned: float, recipe: Any) -> None:
    assert gain_notes(quality(dense, pruned), recipe) == []
    assert gain_notes({"test": {"pruned": quality(0, 1)["test"]["pruned"]}}, {"method": "ltp"}) == []


def test_a_negative_drop_is_a_gain() -> None:
    assert drop_or_gain(0.0052) == "drop 0.52 points"
    assert drop_or_gain(-0.0311) == "gain 3.11 points"
    assert drop_or_gain(0.0) == drop_or_gain(-0.00001) == "drop 0.00 points"
