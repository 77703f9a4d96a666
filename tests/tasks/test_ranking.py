"""Orders judged by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thresher.tasks.ranking import by_query, mean_by_query, order_agreement


def test_one_query_by_hand() -> None:
    """Relevant rows come second and fourth of five."""
    scores, relevance = np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0, 0.0])
    found = mean_by_query(scores, relevance, np.zeros(5, dtype=int))
    ideal = 1 + 1 / math.log2(3)
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert found["mrr@10"] == pytest.approx(1 / 2)
    assert found["map"] == pytest.approx((1 / 2 + 2 / 4) / 2)


def test_graded_relevance_is_the_gain() -> None:
    found = mean_by_query(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.0, 3.0]), np.zeros(3, dtype=int))
    assert found["ndcg@10"] == pytest.approx((1 + 3 / 2) / (3 + 1 / math.log2(3)))


def test_ranks_beyond_ten_count_for_map_only() -> None:
    scores, relevance = -np.arange(12.0), np.zeros(12)
    relevance[11] = 1.0
    found = mean_by_query(scores, relevance, np.zeros(12, dtype=int))
    assert found == {"ndcg@10": 0.0, "mrr@10": 0.0, "map": pytest.approx(1 / 12)}


def test_queries_count_alike_and_mixed_rows_are_sorted_out() -> None:
    """Query 0: best first. Query 1: second of two. Query 2 has nothing relevant and does not count."""
    groups = np.array([1, 0, 2, 1, 0, 2])
    scores, relevance = np.array([1.0, 9.0, 5.0, 2.0, 3.0, 6.0]), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    of_query = by_query(scores, relevance, groups)
    assert of_query["mrr@10"][:2].tolist() == [1.0, 0.5] and math.isnan(of_query["mrr@10"][2])
    assert mean_by_query(scores, relevance, groups)["mrr@10"] == pytest.approx(0.75)
    assert mean_by_query(scores, np.zeros(6), groups) == {"ndcg@10": 0.0, "mrr@10": 0.0, "map": 0.0}


def test_equal_scores_do_not_flatter_whatever_the_order_of_the_file() -> None:
    for relevance in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        found = mean_by_query(np.ones(3), np.array(relevance), np.zeros(3, dtype=int))
        assert found["mrr@10"] == pytest.approx(1 / 3)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 25))
def test_as_scikit_learn(seed: int, rows: int) -> None:
    from sklearn.metrics import average_precision_score, ndcg_score

    draw = np.random.default_rng(seed)
    scores, relevance = draw.permutation(rows).astype(float), draw.integers(0, 4, rows).astype(float)
    relevance[0] = 2.0
    found = mean_by_query(scores, relevance, np.zeros(rows, dtype=int))
    assert found["ndcg@10"] == pytest.approx(ndcg_score(relevance[None], scores[None], k=10))
    assert found["map"] == pytest.approx(average_precision_score(relevance > 0, scores))


def test_agreement_of_orders_by_hand() -> None:
    """Query 0 keeps its order, query 1 turns it round; query 2 has one row and query 3 no order."""
    groups = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    dense = np.array([3.0, 2.0, 1.0, 5.0, 4.0, 1.0, 2.0, 2.0])
    ours = np.array([9.0, 8.0, 1.0, 4.0, 5.0, 7.0, 1.0, 0.0])
    assert order_agreement(ours, dense, groups) == {"spearman": pytest.approx(0), "top1": pytest.approx(2 / 3)}
    assert order_agreement(ours[5:6], dense[5:6], groups[5:6]) == {}
