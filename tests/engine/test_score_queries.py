"""Scores from some of the queries: every way of computing follows the rule of the attached model, alone and in batches.

Lengths are no multiples of the distances between queries that count, and some texts are longer than a tile.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.graphs.running import TOLERANCE, answer, arrays, graph_of, opened
from tests.engine.makers import cpu, engine_with, reference
from tests.engine.test_engine import SCORES, sequences
from tests.engine.test_find_scales import scales_of
from tests.engine.test_parity import EPSILON, Layers, _within_twice, own, prepared
from tests.models.families import FAMILIES, SOME, in_pairs, pruned_model, ragged, run, wide_windows
from thresher.engine.backends import attention
from thresher.engine.graphs.executor import GraphExecutor
from thresher.engine.weights import read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.plan import plan_of

FEW = (4, 8, 0)  # one query in so many, or the first alone
NAMES = ("bert", "mpnet", "nomic_bert", "modernbert", "deberta-v2")
LENGTHS = (130, 1, 7, 67, 64, 16, 3, 16)


def judging(name: str, score_queries: int, **settings: Any) -> Any:
    return pruned_model(name, changes=wide_windows(name, score_queries), score_queries=score_queries, **settings)


@pytest.mark.parametrize(("name", "score_queries", "score"), in_pairs(FAMILIES, FEW, SCORES))
def test_dropping_equals_masking(name: str, score_queries: int, score: str) -> None:
    model = judging(name, score_queries, score=score)
    inputs = ragged(model, LENGTHS)
    wanted, trace = run(model, inputs)
    engine = engine_with(model, reference(torch.float64))
    output = engine.compute(sequences(inputs))
    torch.testing.assert_close(output.outputs, wanted, atol=1e-9, rtol=0)
    assert torch.equal(output.kept[:, :-1], trace.kept()[:, :-1])
    assert len(LENGTHS) < int(output.kept[:, -2].sum()) < 0.7 * sum(LENGTHS)
    for row, text in enumerate(sequences(inputs)):
        alone = engine.compute([text])
        assert torch.equal(alone.kept[0], output.kept[row])
        torch.testing.assert_close(alone.outputs[0], output.outputs[row], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("scale", ["relative", "paper"])
def test_another_rule_gives_other_decisions(scale: str) -> None:
    """And thresholds mean the same: about as many tokens stay, whoever counts."""
    thresholds = SOME if scale == "relative" else tuple(value / 40 for value in SOME)
    found = {}
    for score_queries in (1, *FEW):
        model = judging("bert", score_queries, scale=scale, thresholds=thresholds)
        found[score_queries] = engine_with(model, reference()).compute(sequences(ragged(model, (61, 50, 33)))).kept
    first = [int(kept[:, 0].sum()) for kept in found.values()]
    assert len({tuple(kept.flatten().tolist()) for kept in found.values()}) == len(found)
    assert max(first[:3]) < 1.5 * min(first[:3]), first


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("score_queries", FEW)
@pytest.mark.parametrize("name", NAMES)
def test_processors_keep_the_parity_rules(
    name: str, score_queries: int, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and decisions apart, as in test_parity; tiles so small that some have no query that counts."""
    monkeypatch.setattr(attention, "TILE", 2**12)
    model = judging(name, score_queries, score=score)
    exact = Layers(engine_with(model, reference(torch.float64)), sequences(ragged(model, LENGTHS)))
    for dtype in ("fp32", "bf16", "int8"):
        fast = prepared(model, cpu(dtype))
        plain = prepared(model, reference(torch.bfloat16 if dtype == "bf16" else torch.float32))
        for index, (hidden, runs, scores, context) in enumerate(exact.seen):
            found = fast.attend(index, own(fast, hidden), runs, scored=True)
            assert found[1] is not None
            if dtype != "int8":
                plainly = plain.attend(index, own(plain, hidden), runs, scored=True)
                _within_twice(found[0], plainly[0], context)
                assert plainly[1] is not None
                error, allowed = ((each - scores).abs() for each in (found[1], plainly[1]))
                tiny = 1e-6 * float(scores.max())
                assert float(error.mean()) <= 2 * float(allowed.mean()) + tiny
                # The worst of few queries is not averaged away: logits in bfloat16 show.
                assert float(error.max()) <= 4 * float(allowed.max()) + 10 * tiny
            differ = (found[1] > SOME[index]) != (scores > SOME[index])
            assert bool(((scores - SOME[index]).abs()[differ] < EPSILON[dtype]).all())


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int8-static"])
@pytest.mark.parametrize("score_queries", FEW)
def test_on_a_processor_a_text_is_judged_alike_alone_and_in_a_batch(score_queries: int, dtype: str) -> None:
    model = judging("mpnet", score_queries, score="value")
    texts = sequences(ragged(model, LENGTHS))
    engine = engine_with(model, cpu(dtype, scales_of(model) if dtype == "int8-static" else []))
    together = engine.compute(texts)
    for row, text in enumerate(texts):
        assert torch.equal(engine.compute([text]).kept[0], together.kept[row])


FORMS: dict[str, dict[str, Any]] = {"batch": {}, "one": {"one": True}, "steps": {"one": True, "step": 4}}


@pytest.mark.parametrize(("name", "score_queries", "form", "score"), in_pairs(NAMES, FEW, tuple(FORMS), SCORES))
def test_graphs_decide_and_answer_the_same(name: str, score_queries: int, score: str, form: str) -> None:
    model = judging(name, score_queries, score=score)
    inputs = ragged(model, (11, 1, 7, 67, 16), extra=2)
    expected = engine_with(model, reference()).compute(sequences(inputs))
    found, kept = answer(opened(graph_of(model, kept=True, **FORMS[form])), arrays(inputs), "logits", "kept")
    assert kept.tolist() == expected.kept.tolist()
    np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


def test_graphs_in_the_paper_s_scale() -> None:
    model = judging("bert", 4, scale="paper", thresholds=(0.05, 0.08, 0.1, 0.1))
    inputs = ragged(model, (11, 1, 30))
    expected = engine_with(model, reference()).compute(sequences(inputs))
    for form in FORMS.values():
        _, kept = answer(opened(graph_of(model, kept=True, **form)), arrays(inputs), "logits", "kept")
        assert kept.tolist() == expected.kept.tolist()


def test_a_graph_is_for_its_own_queries_and_executors_say_which() -> None:
    model, other = judging("bert", 8), judging("bert", 4)
    executor = GraphExecutor(read_weights(model), plan_of(model))
    assert executor.describe()["score_queries"] == 8
    assert engine_with(model, cpu()).describe()["score_queries"] == 8
    with pytest.raises(ModelError, match="the graph was built for other layers"):
        executor.with_plan(plan_of(other))


@pytest.mark.parametrize("score_queries", [0, 66, 1000])
def test_queries_that_leave_tokens_unseen_are_refused(score_queries: int) -> None:
    """A window of 64 positions to each side; where every layer sees all, anything goes."""
    said = f"score_queries = {score_queries} leaves tokens that nobody who counts can see: layers of this model see 64 "
    with pytest.raises(ConfigError, match=said + "positions to each side; set score_queries to 1, or at most to 65"):
        pruned_model("modernbert", changes={"local_attention": 128}, score_queries=score_queries)
    pruned_model("modernbert", changes={"local_attention": 128}, score_queries=65)
    pruned_model("modernbert", changes=wide_windows("modernbert", 0), score_queries=score_queries)
