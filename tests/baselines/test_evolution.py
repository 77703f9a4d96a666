"""The search on problems whose front is known."""

import random

from hypothesis import given
from hypothesis import strategies as st

from thresher.baselines.evolution import Candidate, Lengths, crossed, evolve, mutated, pareto_front


def one(cost: float, score: float) -> Candidate:
    return Candidate((int(cost),), cost, score)


def test_front_by_hand() -> None:
    """Dearer and no better is out; of two at one cost only the better one; order is by cost."""
    points = [one(3, 0.7), one(1, 0.5), one(2, 0.4), one(1, 0.2), one(4, 0.7), one(5, 0.9)]
    assert pareto_front(points) == [one(1, 0.5), one(3, 0.7), one(5, 0.9)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(points: list[tuple[int, int]]) -> None:
    candidates = [one(cost, score) for cost, score in points]
    front = pareto_front(candidates)
    for candidate in candidates:
        assert any(best.cost <= candidate.cost and best.score >= candidate.score for best in front)
    for first, second in zip(front, front[1:], strict=False):
        assert first.cost < second.cost and first.score < second.score


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 999), st.floats(0, 1))
def test_mutations_stay_between_their_neighbours(values: list[int], seed: int, probability: float) -> None:
    lengths = tuple(sorted(values, reverse=True))
    found = mutated(lengths, longest=20, probability=probability, draw=random.Random(seed))
    assert len(found) == len(lengths)
    assert all(1 <= after <= before for before, after in zip((20, *found), found, strict=False))


def test_mutation_of_nothing_and_of_everything() -> None:
    draw = random.Random(0)
    assert mutated((9, 5, 2), longest=10, probability=0.0, draw=draw) == (9, 5, 2)
    seen = {mutated((9, 5, 2), longest=10, probability=1.0, draw=draw) for _ in range(300)}
    assert {found[0] for found in seen} == set(range(5, 11)), "from the old successor to the longest"
    assert min(found[2] for found in seen) == 1


def test_crossing_is_the_mean_rounded_up() -> None:
    assert crossed((9, 5, 2), (4, 4, 2)) == (7, 5, 2)


def test_the_known_front_is_found() -> None:
    """Quality counts only the first layer's tokens, cost counts all: on the front the others keep one token each."""
    asked: list[Lengths] = []

    def measure(lengths: Lengths) -> Candidate:
        asked.append(lengths)
        return Candidate(lengths, float(sum(lengths)), float(lengths[0]))

    start = [(8, 8, 8), (1, 1, 1)]
    rounds: list[int] = []
    found = evolve(
        start, measure, longest=8, rounds=25, draw=random.Random(1), on_round=lambda front: rounds.append(len(front))
    )
    assert [candidate.lengths for candidate in found] == [(kept, 1, 1) for kept in range(1, 9)]
    assert len(asked) == len(set(asked)), "each is measured once"
    assert len(rounds) == 25
    again = evolve(start, measure, longest=8, rounds=25, draw=random.Random(1))
    assert again == found, "the same draw, the same search"


def test_a_front_of_one_cannot_be_crossed_and_no_rounds_measure_the_start() -> None:
    def measure(lengths: Lengths) -> Candidate:
        return Candidate(lengths, float(sum(lengths)), 1.0)

    assert evolve([(3, 2)], measure, longest=4, rounds=0, draw=random.Random(0))[0].lengths == (3, 2)
    assert evolve([(3, 2)], measure, longest=4, rounds=20, draw=random.Random(0))[0].lengths == (1, 1)
