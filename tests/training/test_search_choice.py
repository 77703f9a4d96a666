"""What is taken, and where to look next: hand-sized curves, and a simulation of whole studies."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.training.search_studies import simulate
from thresher.training.search.choice import choose, front, judge
from thresher.training.search.plan import Tried, next_target, start_for

COSTS = np.array([0.6, 0.5, 0.4, 0.3])
TRAINED = np.ones(4, dtype=bool)


def take(drops: list[float], *, spread: float = 0.0, trained: np.ndarray = TRAINED, rows: int = 10**6) -> tuple:
    """The choice when every draw moves all drops alike by a normal amount."""
    observed = np.array(drops)
    moves = np.random.default_rng(0).normal(0, spread, (4000, 1))
    judged = judge(COSTS, trained, observed, observed + moves, rows=rows, limit=0.01, confidence=0.8)
    choice = choose(COSTS, judged)
    return choice.index, choice.within, judged


def test_without_noise_the_cheapest_within_the_limit_is_taken() -> None:
    assert take([0.0, 0.002, 0.008, 0.03])[:2] == (2, True)


def test_noise_asks_for_a_margin() -> None:
    """At 80% the bound lies 0.84 standard errors above the drop: 0.8 + 0.84 x 0.5 points is over 1."""
    index, within, judged = take([0.0, 0.002, 0.008, 0.03], spread=0.005)
    assert (index, within) == (1, True)
    assert judged.bound[1] == pytest.approx(0.002 + 0.842 * 0.005, abs=3e-4)


def test_a_lucky_model_is_judged_by_its_neighbours() -> None:
    """0.3 looks better than the dearer 0.4 and 0.5 do; the curve says that all three are the same, 1.33 points."""
    index, _, judged = take([0.0, 0.02, 0.02, 0.0])
    np.testing.assert_allclose(judged.curve, [0.0, 0.04 / 3, 0.04 / 3, 0.04 / 3])
    assert index == 0


def test_an_unlucky_model_is_not_saved_by_its_neighbours() -> None:
    assert take([0.0, 0.012, 0.004, 0.03])[:2] == (2, True)  # 0.5 is over the limit by itself, 0.4 is not


def test_models_that_were_not_trained_do_not_bend_the_curve() -> None:
    index, _, judged = take([0.0, 0.05, 0.004, 0.03], trained=np.array([True, False, True, True]))
    assert index == 2 and judged.curve[1] == pytest.approx(0.002) and judged.bound[1] == pytest.approx(0.05, abs=1e-4)


def test_nothing_within_the_limit_gives_what_comes_nearest_and_says_so() -> None:
    assert take([0.02, 0.03, 0.04, 0.05])[:2] == (0, False)


def test_few_rows_show_nothing_even_if_no_prediction_changes() -> None:
    """-ln(0.2) / n: 161 rows are needed to show a drop of at most 1 point."""
    assert take([0.0] * 4, rows=160)[1] is False
    assert take([0.0] * 4, rows=161)[1] is True


def test_the_front() -> None:
    assert front(np.array([0.6, 0.5, 0.4, 0.4]), np.array([0.0, 0.01, 0.01, 0.02])) == [2, 0]


@pytest.mark.parametrize("rows", [367, 2000])
def test_the_true_drop_stays_within_the_limit_in_four_of_five_studies(rows: int) -> None:
    naive, careful = simulate(rows, other=10, studies=80, confidences=(0.5, 0.8))
    assert careful.true >= 0.8
    assert careful.true > naive.true


# --- where to train next ---------------------------------------------------------------------------------------------


def trials(good: Callable[[float], bool], *targets: float, sure: Callable[[float], bool] | None = None) -> list[Tried]:
    return [Tried(target, good(target), (sure or good)(target)) for target in targets]


def test_down_while_quality_holds_and_then_into_the_gap() -> None:
    def good(target: float) -> bool:
        return target >= 0.41

    seen = [0.6]
    while (target := next_target(trials(good, *seen), [], lowest=0.2)) is not None:
        seen.append(target)
    assert seen == [0.6, 0.516, 0.4438, 0.3817, 0.4116, 0.3964]
    assert min(filter(good, seen)) == 0.4116


def test_no_target_below_what_can_be_reached() -> None:
    seen = trials(lambda target: True, 0.6, 0.516)
    assert next_target(seen, [], lowest=0.47) == 0.47
    assert next_target([*seen, Tried(0.47, True, True)], [], lowest=0.47) is None


def test_looser_when_nothing_passes() -> None:
    seen = trials(lambda target: False, 0.6)
    assert next_target(seen, [], lowest=0.2) == 0.6977
    assert next_target([*seen, Tried(0.93, False, False)], [], lowest=0.2) is None


def test_what_is_promising_but_not_sure_does_not_stop_the_descent() -> None:
    assert next_target(trials(lambda target: True, 0.6, sure=lambda target: False), [], lowest=0.2) == 0.516


def test_other_processes_get_other_targets() -> None:
    assert next_target(trials(lambda target: True, 0.6), [0.516], lowest=0.2) == 0.4438
    half = trials(lambda target: target > 0.5, 0.6, 0.516, 0.4)
    assert next_target(half, [], lowest=0.2) == 0.4543
    assert next_target(half, [0.4543], lowest=0.2) == 0.4842


def test_a_scaled_model_that_passes_closes_the_gap_from_above() -> None:
    seen = trials(lambda target: False, 0.6)
    assert next_target([*seen, Tried(0.68, True, True), Tried(0.75, True, True)], [], lowest=0.2) == 0.6387


def test_a_trial_starts_from_the_nearest_looser_one() -> None:
    assert start_for(0.45, [0.6, 0.5, 0.4]) == 0.5
    assert start_for(0.7, [0.6, 0.5]) == 0.6
