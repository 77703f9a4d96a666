"""Agreement and its intervals, on numbers that can be checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.evaluation.agreement import agreement, assured, assured_of, change, measure_agreement, wilson


def logits(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_wilson_by_hand() -> None:
    """Newcombe (1998), table I: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_stays_inside(case: tuple[int, int]) -> None:
    successes, trials = case
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    assert low < high


def test_wilson_refuses_what_is_not_a_share() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_decisions() -> None:
    dense = logits((2, 0), (0, 1), (3, 1), (0, 5))
    moved = logits((1, 0), (1, 0), (9, 1), (0, 5))  # the second decision is another
    found = measure_agreement(moved, dense)
    assert found.value == 0.75 and found.texts == 4 and found.rms is None
    assert (found.low, found.high) == wilson(3, 4)
    assert found.kind.startswith("same decision")


def test_a_regression_is_judged_by_correlation() -> None:
    dense = logits(*((float(value),) for value in range(50)))
    rng = np.random.default_rng(1)
    moved = dense + rng.normal(0, 3, dense.shape).astype(np.float32)
    found = measure_agreement(moved, dense)
    assert found.value == pytest.approx(np.corrcoef(moved[:, 0], dense[:, 0])[0, 1])
    assert found.low < found.value < found.high <= 1
    assert found.rms == pytest.approx(np.sqrt(np.mean((moved - dense) ** 2)) / dense.std(), rel=1e-5)
    assert found == measure_agreement(moved, dense)  # the interval is the same every time


def test_change_is_total_variation() -> None:
    even = logits((0, 0))
    assert change(even, even) == 0
    assert change(logits((100, 0)), logits((0, 100))) == pytest.approx(1)
    assert change(logits((np.log(3), 0)), even) == pytest.approx(0.25)  # 3/4, 1/4 against halves


def test_what_is_assured() -> None:
    """With every text agreeing, Wilson's lower end for z = 1 is n / (n + 1)."""
    assert assured(1.0, texts=99, regression=False) == pytest.approx(0.99)
    assert assured(0.9, texts=100, regression=False) == pytest.approx(0.8660, abs=1e-4)
    assert assured(0.9, texts=100, regression=True) == pytest.approx(0.881)


def test_agreement() -> None:
    exact = np.array([[0, 1], [1, 0], [0, 1], [1, 0]], dtype=np.float32)
    assert agreement(exact, exact) == 1.0
    assert agreement(exact[::-1], exact) == 0.0
    values = np.array([[0.0], [1.0], [2.0]], dtype=np.float32)
    assert agreement(2 * values, values) == pytest.approx(1.0)
    flat = np.ones((3, 1), dtype=np.float32)
    assert agreement(flat, flat) == 1.0
    assert agreement(flat, values) == 0.0


def test_several_labels_agree_where_all_are_the_same() -> None:
    """A text counts whole: two labels moved over zero in one text are one text of four."""
    exact = logits((1, -1, 2), (3, 1, -1), (-1, -2, -1), (1, 1, 1))
    moved = logits((2, -3, 1), (-1, -1, -1), (-1, -2, -1), (1, 1, 1))
    assert agreement(moved, exact, "labels") == 0.75
    found = measure_agreement(moved, exact, "labels")
    assert found.kind.startswith("same labels") and (found.low, found.high) == wilson(3, 4)
    assert change(exact, exact, "labels") == 0
    assert change(logits((100, -100)), logits((-100, 100)), "labels") == pytest.approx(1)


def test_embeddings_agree_by_their_mean_cosine() -> None:
    exact = logits((1, 0), (0, 2), (3, 3))
    moved = logits((5, 0), (2, 0), (3, 3))
    assert agreement(moved, exact, "embedding") == pytest.approx(2 / 3)
    assert change(moved, exact, "embedding") == pytest.approx(1 / 3)
    found = measure_agreement(moved, exact, "embedding")
    assert found.kind.startswith("mean cosine") and found.low <= found.value <= found.high and found.rms is None
    assert assured_of(moved, exact, "embedding") == pytest.approx(2 / 3 - np.std([1, 0, 1]) / np.sqrt(3))


def test_scores_agree_like_values() -> None:
    exact = logits(*((value,) for value in range(10)))
    moved = exact[::-1].copy()
    assert agreement(moved, exact, "score") == agreement(moved, exact) == pytest.approx(-1)
    assert measure_agreement(moved, exact, "score") == measure_agreement(moved, exact)
