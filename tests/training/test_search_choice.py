"""What is taken, and where to look next: hand-sized cases, and a simulation of whole searches."""

from collections.abc import Callable

import numpy as np
import pytest
from search_studies import MRPC, by_answers, by_expectation, tally

from thresher.training.search.choice import choose, front, upper_bounds
from thresher.training.search.expected import Expected
from thresher.training.search.plan import Tried, next_target, start_for

COSTS = np.array([0.6, 0.5, 0.4, 0.3])


def bounds_of(drops: list[float], *, spread: float = 0.0, rows: int = 10**6) -> np.ndarray:
    """At 80%, when every draw moves all drops alike by a normal amount."""
    moves = np.random.default_rng(0).normal(0, spread, (4000, 1))
    return upper_bounds(Expected(np.array(drops), np.array(drops) + moves), rows=rows, confidence=0.8)


def take(drops: list[float], *, spread: float = 0.0, rows: int = 10**6) -> tuple[int, bool]:
    choice = choose(COSTS, bounds_of(drops, spread=spread, rows=rows), limit=0.01)
    return choice.index, choice.within


def test_without_noise_the_cheapest_within_the_limit_is_taken() -> None:
    assert take([0.0, 0.002, 0.008, 0.03]) == (2, True)
    assert take([0.0, 0.012, 0.004, 0.03]) == (2, True)


def test_noise_asks_for_a_margin() -> None:
    """At 80% the bound lies 0.84 standard errors above the drop: 0.8 + 0.84 x 0.5 points is over 1."""
    assert take([0.0, 0.002, 0.008, 0.03], spread=0.005) == (1, True)
    assert bounds_of([0.002], spread=0.005)[0] == pytest.approx(0.002 + 0.842 * 0.005, abs=3e-4)


def test_nothing_within_the_limit_gives_what_comes_nearest_and_says_so() -> None:
    assert take([0.02, 0.03, 0.04, 0.05]) == (0, False)


def test_few_rows_show_nothing_even_if_no_prediction_changes() -> None:
    """-ln(0.2) / n: 161 rows are needed to show a drop of at most 1 point."""
    assert take([0.0] * 4, rows=160)[1] is False
    assert take([0.0] * 4, rows=161)[1] is True


def test_the_front() -> None:
    assert front(np.array([0.6, 0.5, 0.4, 0.4]), np.array([0.0, 0.01, 0.01, 0.02])) == [2, 0]


def test_expected_drops_find_cheaper_models_than_answers_and_keep_the_true_drop() -> None:
    rules = {"answers": by_answers(0.8), "expected": by_expectation(0.8)}
    found = tally(MRPC, rules, studies=40)
    assert found["expected"].cost < 0.9 * found["answers"].cost
    assert found["expected"].true >= 0.75


# --- where to train next ---------------------------------------------------------------------------------------------


def trials(good: Callable[[float], bool], *targets: float) -> list[Tried]:
    return [Tried(target, good(target)) for target in targets]


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
    assert next_target([*seen, Tried(0.47, good=True)], [], lowest=0.47) is None


def test_looser_when_nothing_is_good() -> None:
    seen = trials(lambda target: False, 0.6)
    assert next_target(seen, [], lowest=0.2) == 0.6977
    assert next_target([*seen, Tried(0.93, good=False)], [], lowest=0.2) is None


def test_other_processes_get_other_targets() -> None:
    assert next_target(trials(lambda target: True, 0.6), [0.516], lowest=0.2) == 0.4438
    half = trials(lambda target: target > 0.5, 0.6, 0.516, 0.4)
    assert next_target(half, [], lowest=0.2) == 0.4543
    assert next_target(half, [0.4543], lowest=0.2) == 0.4842


def test_a_good_scaled_model_closes_the_gap_from_above() -> None:
    seen = trials(lambda target: False, 0.6)
    assert next_target([*seen, Tried(0.68, good=True), Tried(0.75, good=True)], [], lowest=0.2) == 0.6387


def test_a_trial_starts_from_the_nearest_looser_one() -> None:
    assert start_for(0.45, [0.6, 0.5, 0.4]) == 0.5
    assert start_for(0.7, [0.6, 0.5]) == 0.6
