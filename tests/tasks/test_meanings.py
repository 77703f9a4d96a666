"""Rerankers, embeddings and several labels a row: specs, what is read of rows, and how outputs are judged."""

import numpy as np
import pytest

from thresher.errors import DataError
from thresher.tasks.bootstrap import observed_drop, paired_drop, scores
from thresher.tasks.metrics import evaluate, neighbours_kept
from thresher.tasks.task import Example, Task, TaskSpec, labelled
from thresher.tasks.truth import Truth

RERANK = TaskSpec("pairs", "query", "document", (), ("ndcg@10",), means="score")
EMBED = TaskSpec("texts", "text", "pair", (), ("spearman",), means="embedding")
TOPICS = TaskSpec("topics", "text", None, ("a", "b", "c"), ("micro_f1", "macro_f1"), means="labels")
CLASSES = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy",))


def test_what_a_spec_says() -> None:
    assert (CLASSES.means, TaskSpec("v", "text", None, (), ("pearson",)).means) == ("classes", "value")
    assert [spec.num_labels for spec in (CLASSES, RERANK, EMBED, TOPICS)] == [2, 1, 0, 3]
    assert [spec.truncation for spec in (RERANK, EMBED)] == ["only_second", "longest_first"]
    assert not RERANK.regression
    for wrong, message in (
        ({"means": "ranks"}, "means = 'ranks' of task t is not one of: classes, labels, value, score, embedding"),
        ({"means": "labels"}, "means = 'labels' needs names of labels"),
        ({"means": "score", "labels": ("a",)}, "means = 'score' needs no labels"),
        ({"means": "score", "metrics": ("accuracy",)}, "reranking knows ndcg@10, mrr@10, map"),
    ):
        with pytest.raises(ValueError, match=message):
            TaskSpec(
                **{"name": "t", "text_column": "x", "pair_column": "y", "labels": (), "metrics": ("map",), **wrong}
            )


def test_what_a_run_remembers() -> None:
    plain = Task(CLASSES, [], [], {}, "s").describe()
    assert plain.keys() == {"name", "labels", "columns", "source"}
    spec = TaskSpec("t", "q", "d", (), ("map",), means="score", group_column="id")
    found = Task(spec, [], [], {}, "s").describe()
    assert found["means"] == "score" and found["columns"]["group"] == "id"
    several = TaskSpec("t", "x", None, ("a", "b"), ("micro_f1",), means="labels", separator="|")
    assert Task(several, [], [], {}, "s").describe()["separator"] == "|"


def test_pairs_of_embeddings_are_read_apart() -> None:
    rows = [Example("one", "two", 3.0), Example("three", "four", 1.0)]
    assert [row.text for row in EMBED.inputs(rows)] == ["one", "two", "three", "four"]
    assert all(row.pair is None and row.label is None for row in EMBED.training_rows(rows))
    assert EMBED.inputs([Example("alone", None, None)]) == [Example("alone", None, None)]
    assert RERANK.inputs(rows) == rows


def test_graded_relevance_is_no_target() -> None:
    plain = [Example("q", "d", 1.0, "g"), Example("q", "e", 0.0, "g")]
    assert RERANK.training_rows(plain) == plain
    graded = RERANK.training_rows([Example("q", "d", 2.0, "g"), Example("q", "e", 0.0, "g")])
    assert graded == [Example("q", "d", None, "g"), Example("q", "e", None, "g")]


def test_rows_without_a_relevant_one_judge_nothing() -> None:
    """Every order of them would score 0, the dense model's too, and any pruning would pass."""
    rows = [Example("q", "d", 0.0), Example("r", "e", 0.0)]
    with pytest.raises(DataError, match="task pairs has 2 rows and no relevant one among them"):
        RERANK.truth(rows)
    assert RERANK.truth([*rows, Example("r", "f", 2.0)]).units == 2
    assert TaskSpec("v", "text", None, (), ("pearson",)).truth(rows).rows == 2, "a value may be 0"


def test_rows_that_every_order_suits_judge_nothing() -> None:
    """Pairs that fit are what many have: their nDCG is 1 by any model, and a search would prune all there is."""
    rows = [Example("q", "d", 1.0), Example("q", "e", 1.0), Example("r", "f", 0.0)]
    with pytest.raises(DataError, match="task pairs has 3 rows, and those of each query are all equally relevant"):
        RERANK.truth(rows)
    assert RERANK.truth([*rows, Example("r", "g", 1.0)]).units == 2


def test_rows_without_any_of_several_labels_judge_nothing() -> None:
    spec = TaskSpec("t", "x", None, ("a", "b"), ("micro_f1",), means="labels")
    none, some = Example("one", None, (0, 0)), Example("two", None, (0, 1))
    with pytest.raises(DataError, match="task t has 2 rows and no label on any of them, so that F1 is 0"):
        spec.truth([none, none])
    assert spec.truth([none, some]).rows == 2


def test_all_rows_have_labels_or_none() -> None:
    assert labelled([Example("a", None, 0)], name="t") and not labelled([Example("a", None, None)], name="t")
    with pytest.raises(DataError, match="task t: 1 of 2 rows have no label; give all rows of a split one, or none"):
        labelled([Example("a", None, 0), Example("b", None, None)], name="t")
    with pytest.raises(DataError, match="judged by agreement with the dense model; give its outputs, or rows with"):
        RERANK.truth([Example("q", "d", None)])


def test_a_reranker_with_labels() -> None:
    rows = [Example("q", "a", 0.0), Example("q", "b", 1.0), Example("r", "c", 1.0), Example("r", "d", 0.0)]
    found = evaluate(RERANK, np.array([[2.0], [1.0], [5.0], [4.0]]), RERANK.truth(rows))
    assert found["mrr@10"] == pytest.approx(0.75) and found["score"] == found["ndcg@10"]
    grouped = [Example(row.text, row.pair, row.label, "same") for row in rows]
    assert RERANK.truth(grouped).units == 1 and RERANK.truth(rows).units == 2


def test_a_reranker_without_labels_is_compared_with_the_dense_model() -> None:
    rows = [Example("q", "a", None), Example("q", "b", None), Example("r", "c", None), Example("r", "d", None)]
    dense = np.array([[1.0], [2.0], [3.0], [4.0]])
    truth = RERANK.truth(rows, dense=dense)
    same = evaluate(RERANK, dense, truth)
    assert same == {"pearson": pytest.approx(1), "spearman": pytest.approx(1), "top1": 1.0, "score": pytest.approx(1)}
    other = evaluate(RERANK, np.array([[2.0], [1.0], [3.0], [4.0]]), truth)
    assert other["score"] == pytest.approx(0.8) and (other["spearman"], other["top1"]) == (pytest.approx(0), 0.5)
    assert observed_drop(RERANK, dense, dense[::-1], truth) == pytest.approx(2.0)


def test_embeddings_by_hand() -> None:
    """Cosines 1, 0 and -1 against similarities that fall; lengths do not count."""
    rows = [Example("a", "b", 5.0), Example("c", "d", 2.0), Example("e", "f", 1.0)]
    outputs = np.array([[1, 0], [3, 0], [1, 0], [0, 2], [1, 0], [-1, 0]], dtype=float)
    assert evaluate(EMBED, outputs, EMBED.truth(rows)) == {"spearman": pytest.approx(1), "score": pytest.approx(1)}
    with pytest.raises(ValueError, match=r"shape \(3, 2\), expected \(6, 2\)"):
        evaluate(EMBED, outputs[:3], EMBED.truth(rows))
    texts = [Example(name, None, None) for name in "abc"]
    dense = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    turned = np.array([[2.0, 0.0], [0.1, 0.9], [0.0, 1.0]])  # b now lies beside c
    found = evaluate(EMBED, turned, EMBED.truth(texts, dense=dense))
    wanted = (1 + 0.18 / 0.82 + 1) / 3
    assert found["cosine"] == found["score"] == pytest.approx(wanted)
    assert found["neighbours"] == neighbours_kept(turned, dense) == pytest.approx(2 / 3)
    assert evaluate(EMBED, 3 * dense, EMBED.truth(texts, dense=dense))["score"] == pytest.approx(1)


def test_several_labels_by_hand() -> None:
    """Label a: 1 hit, 1 false; b: 1 hit, 1 missed; c: never asked for nor given."""
    truth = TOPICS.truth([Example("x", None, (1, 1, 0)), Example("y", None, (0, 1, 0))])
    found = evaluate(TOPICS, np.array([[2.0, 1.0, -1.0], [0.1, -3.0, -1.0]]), truth)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    assert found["score"] == pytest.approx((found["micro_f1"] + found["macro_f1"]) / 2)
    one = TaskSpec("one", "text", None, ("a",), ("micro_f1",), means="labels")
    assert evaluate(one, np.array([[1.0], [1.0]]), np.array([[1], [0]]))["score"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("kind", ["score", "unlabelled score", "embedding", "unlabelled embedding", "labels", "value"])
def test_counts_give_the_plain_metric_of_what_was_drawn(kind: str) -> None:
    draw, rows = np.random.default_rng(0), 24
    inputs = 2 * rows if kind == "embedding" else rows
    spec = {"score": RERANK, "labels": TOPICS, "value": TaskSpec("v", "x", None, (), ("pearson",))}.get(
        kind.split()[-1], EMBED
    )
    outputs = draw.normal(size=(inputs, {"score": 1, "labels": 3, "value": 1}.get(kind.split()[-1], 4)))
    if kind.startswith("unlabelled"):
        truth = Truth(draw.normal(size=outputs.shape), False, np.arange(rows) // 4 if "score" in kind else None)
    elif kind == "labels":
        truth = Truth(draw.integers(0, 2, (rows, 3)))
    else:
        truth = Truth(draw.integers(0, 2, rows).astype(float), groups=np.arange(rows) // 4 if kind == "score" else None)
    units = truth.units
    assert units == (6 if kind == "score" else rows)
    chosen = draw.integers(0, units, (8, units))
    counts = np.stack([np.bincount(one, minlength=units) for one in chosen]).astype(float)
    wanted = []
    for one in chosen:
        if kind == "score":  # whole queries; one drawn twice is two queries
            picked = np.concatenate([np.flatnonzero(truth.groups == query) for query in one])
            again = Truth(truth.values[picked], groups=np.repeat(np.arange(units), 4))
        else:
            picked, again = one, truth.of(one)
        read = np.stack([2 * picked, 2 * picked + 1], axis=1).ravel() if kind == "embedding" else picked
        wanted.append(evaluate(spec, outputs[read], again)["score"])
    np.testing.assert_allclose(scores(spec, outputs, truth, counts), wanted, atol=1e-12)


def test_the_drop_of_a_reranker_is_over_queries() -> None:
    draw = np.random.default_rng(1)
    rows = [Example(f"query {i // 5}", f"document {i}", float(i % 5 == 0)) for i in range(200)]
    dense = np.array([row.label for row in rows])[:, None] + draw.normal(size=(200, 1))
    found = paired_drop(RERANK, dense, dense + draw.normal(size=(200, 1)), RERANK.truth(rows))
    assert found.rows == 200 and found.low < found.drop < found.high
    assert paired_drop(RERANK, dense, dense, RERANK.truth(rows)).high == 0.0
