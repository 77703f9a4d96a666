"""Every family, head, score and rule: the graph in onnxruntime drops what the engine drops and answers the same."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.graphs.running import TOLERANCE, answer, arrays, expected_of, gated, graph_of, opened
from tests.engine.test_engine import VARIANTS
from tests.models.families import (
    FAMILIES,
    LAYERS,
    LENGTHS,
    SEPARATOR,
    SOME,
    WITHOUT_SPANS,
    in_pairs,
    logits_of,
    one,
    prune_with_,
    ragged,
    tiny_model,
)
from thresher.core.plan import PruningPlan
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.graphs.graph import known_activation
from thresher.engine.weights import read_weights
from thresher.errors import ModelError
from thresher.models.embedder import pooled
from thresher.models.heads import head_of
from thresher.models.plan import plan_of

SCORES = ("attention", "value")
HEADS = (None, "first", "mean")  # a classifier, and embedders by what they read


def name_of(reads: str | None) -> str:
    return "logits" if reads is None else "sentence_embedding"


@pytest.mark.parametrize(("family", "reads", "score"), in_pairs(FAMILIES, HEADS, SCORES))
def test_every_family_and_head(family: str, reads: str | None, score: str) -> None:
    model = gated(family, reads=reads, score=score)
    inputs = ragged(model, extra=2)
    expected = expected_of(model, inputs)
    assert int(expected.kept[:, -2].sum()) < sum(LENGTHS)
    for single in (False, True):
        session = opened(graph_of(model, one=single, kept=True))
        found, kept = answer(session, arrays(inputs), name_of(reads), "kept")
        assert kept.tolist() == expected.kept.tolist()
        np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


@pytest.mark.parametrize(("family", "reads", "score"), in_pairs(FAMILIES, [None, "first"], SCORES))
def test_idle_rows_change_nothing(family: str, reads: str | None, score: str) -> None:
    """Rows in multiples of 4: also for texts of 1 token, and where a convolution would see its neighbours."""
    more = {"conv_kernel_size": 3} if family == "deberta-v2" and reads is None else {}
    model = tiny_model(family, **more) if more else gated(family, reads=reads, score=score)
    if more:
        prune_with_(model, SOME, score=score)
    inputs = ragged(model, extra=2)
    expected = expected_of(model, inputs)
    graph = graph_of(model, one=True, kept=True, step=4)
    assert sum(node.op_type == "Pad" for node in graph.graph.node) >= 2, "the input's rows, and a layer's"
    found, kept = answer(opened(graph), arrays(inputs), name_of(reads), "kept")
    assert kept.tolist() == expected.kept.tolist()
    np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


REFUSED = [("mean", {"one": True}), (None, {}), (None, {"one": True, "passed": True})]


@pytest.mark.parametrize(("reads", "form"), REFUSED)
def test_idle_rows_are_refused_where_they_would_be_read(reads: str | None, form: dict[str, bool]) -> None:
    with pytest.raises(ModelError, match="step = 4 is for single texts of which first tokens alone are read"):
        graph_of(gated("bert", reads=reads), step=4, **form)


DEBERTA = {
    "a convolution": {"conv_kernel_size": 3},
    "a grouped one": {"conv_kernel_size": 3, "conv_groups": 2, "share_att_key": False},
    "keys alone, a table": {"pos_att_type": ["c2p"], "position_biased_input": True, "position_buckets": -1},
    "queries alone": {"pos_att_type": ["p2c"]},
}


@pytest.mark.parametrize("means", ["classes", "tags"])
@pytest.mark.parametrize("case", DEBERTA)
def test_what_only_some_debertas_have(case: str, means: str) -> None:
    """Convolutions stay inside their text, whatever stands beside it; far tokens share an embedding."""
    model = tiny_model("deberta-v2", means=means, **DEBERTA[case])
    prune_with_(model, SOME, score="value")
    inputs = ragged(model, (30, 1, 7, 3, 16), extra=1)
    expected = expected_of(model, inputs)
    mask = inputs["attention_mask"].numpy() == 1
    for single in (False, True):
        found, kept = answer(opened(graph_of(model, one=single, kept=True)), arrays(inputs), "logits", "kept")
        assert kept.tolist() == expected.kept.tolist()
        np.testing.assert_allclose(found if means == "classes" else found[mask], expected.outputs.numpy(), **TOLERANCE)


@pytest.mark.parametrize("means", ["span", "tags"])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_that_read_every_token(family: str, means: str) -> None:
    """Each has its outputs in its place, whether it was dropped or not; padding has zeros."""
    if means == "span" and family in WITHOUT_SPANS:
        pytest.skip(f"{family} has no model for question answering")
    model = tiny_model(family, means=means)
    prune_with_(model, SOME, score="value")
    inputs = ragged(model, extra=2)
    expected = expected_of(model, inputs)
    assert int(expected.kept[:, -1].sum()) < sum(LENGTHS)
    names = ("start_logits", "end_logits") if means == "span" else ("logits",)
    for single in (False, True):
        *found, kept = answer(opened(graph_of(model, one=single, kept=True)), arrays(inputs), *names, "kept")
        whole = np.stack(found, axis=-1) if means == "span" else found[0]
        assert kept.tolist() == expected.kept.tolist()
        mask = inputs["attention_mask"].numpy() == 1
        np.testing.assert_allclose(whole[mask], expected.outputs.numpy(), **TOLERANCE)
        assert not whole[~mask].any()


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("family", "reads"), [("mpnet", None), ("roberta", "mean"), ("albert", None)])
def test_every_rule_of_the_gates(family: str, reads: str | None, variant: str, single: bool) -> None:
    """Also with separators and with padding ids inside a text, which RoBERTa's kind leaves out of its positions."""
    thresholds, settings = VARIANTS[variant]
    model = gated(family, thresholds, reads=reads, score="value", **settings)
    inputs = ragged(model)
    inputs["input_ids"][0, 4] = inputs["input_ids"][4, 9] = SEPARATOR
    inputs["input_ids"][2, 3] = model.config.pad_token_id
    expected = expected_of(model, inputs)
    found, kept = answer(opened(graph_of(model, one=single, kept=True)), arrays(inputs), name_of(reads), "kept")
    assert kept.tolist() == expected.kept.tolist()
    np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("reads", [None, "mean"])
def test_how_far_each_token_came(reads: str | None, single: bool) -> None:
    """As many as the counts say, in the places of tokens; what masking keeps is what was passed on."""
    model = gated("mpnet", reads=reads, score="value")
    inputs = arrays(ragged(model, extra=2))
    kept, passed = answer(opened(graph_of(model, one=single, kept=True, passed=True)), inputs, "kept", "passed")
    mask = inputs["attention_mask"] == 1
    assert not passed[~mask].any() and len(set(passed[mask].tolist())) > 2
    for layer in range(LAYERS):
        assert ((passed > layer) & mask).sum(axis=1).tolist() == kept[:, layer].tolist()
    first = passed[:, 0].tolist()
    assert first == [LAYERS] * len(first)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_dense_graph_is_the_stock_model(family: str) -> None:
    model = tiny_model(family)
    inputs = ragged(model, extra=1)
    dense = PruningPlan.dense(LAYERS)
    found, kept = answer(opened(graph_of(model, dense, kept=True)), arrays(inputs), "logits", "kept")
    np.testing.assert_allclose(found, logits_of(model, inputs).numpy(), **TOLERANCE)
    assert kept.tolist() == [[length] * (LAYERS - 1) + [1] for length in LENGTHS]


@pytest.mark.parametrize("labels", [1, 5])
def test_as_many_logits_as_the_head_has(labels: int) -> None:
    model = tiny_model("distilbert", num_labels=labels)
    inputs = ragged(model)
    (found,) = answer(opened(graph_of(model)), arrays(inputs), "logits")
    np.testing.assert_allclose(found, logits_of(model, inputs).numpy(), **TOLERANCE)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_token_types(family: str) -> None:
    model = gated(family)
    inputs = ragged(model)
    inputs["token_type_ids"] = (torch.arange(inputs["input_ids"].shape[1])[None] > 2).long() * inputs["attention_mask"]
    for single in (False, True):
        (found,) = answer(opened(graph_of(model, types=True, one=single)), arrays(inputs), "logits")
        np.testing.assert_allclose(found, logits_of(model, inputs).numpy(), **TOLERANCE)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_every_token_of_an_embedder_is_in_its_place(family: str, single: bool) -> None:
    """Pooled by somebody else, as sentence-transformers and transformers.js do it, they give the embedding."""
    model = gated(family, reads="mean")
    inputs = ragged(model, extra=2)
    session = opened(graph_of(model, one=single))
    states, embedding = answer(session, arrays(inputs), "last_hidden_state", "sentence_embedding")
    mask = inputs["attention_mask"]
    assert states.shape == (*mask.shape, 32) and not states[mask.numpy() == 0].any()
    by_hand = pooled(torch.from_numpy(states), mask, head_of(model))
    np.testing.assert_allclose(by_hand.numpy(), embedding, **TOLERANCE)


def test_an_embedder_of_first_tokens_gives_their_states() -> None:
    model = gated("bert", reads="first")
    inputs = ragged(model)
    states, embedding = answer(opened(graph_of(model)), arrays(inputs), "last_hidden_state", "sentence_embedding")
    assert states.shape == (len(LENGTHS), 1, 32)
    by_hand = pooled(torch.from_numpy(states), inputs["attention_mask"], head_of(model))
    np.testing.assert_allclose(by_hand.numpy(), embedding, **TOLERANCE)


DIALED: dict[str, tuple[Any, ...]] = {
    "classes": (None, (0.7, 0.8, 0.9, 1.0), {}),
    "alone early": (None, (0.5, float("inf"), 0.5, 0.5), {}),
    "separators": (
        None,
        (0.5, float("inf"), 0.5, 0.5),
        {"protect": ("first", "separators"), "separator_id": SEPARATOR},
    ),
    "mean": ("mean", (0.7, 0.8, 0.9, float("inf")), {}),
}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("case", DIALED)
def test_the_dial_is_an_input_with_a_default(case: str, single: bool) -> None:
    reads, thresholds, settings = DIALED[case]
    model = gated("mpnet", thresholds, reads=reads, **settings)
    inputs = ragged(model)
    session = opened(graph_of(model, dial=True, one=single, kept=True))
    assert "dial" not in [given.name for given in session.get_inputs()], "nobody has to give it"
    for dial in (None, 0.0, 0.5, 1.0, 1.5):
        expected = expected_of(model, inputs, dial=1.0 if dial is None else dial)
        for row in range(len(LENGTHS)) if single else (slice(None),):
            texts = inputs if not single else one(inputs, row)
            given = arrays(texts) | ({} if dial is None else {"dial": np.array(dial, np.float32)})
            found, kept = session.run([name_of(reads), "kept"], given)
            wanted = np.atleast_2d(expected.outputs[row].numpy())
            assert kept.tolist() == np.atleast_2d(expected.kept[row].numpy()).tolist()
            np.testing.assert_allclose(found, wanted, **TOLERANCE)


def test_fp16_is_in_the_file_and_not_in_the_sums() -> None:
    from thresher.exporting.folder import rounded

    model = gated("mpnet", reads="mean").float()
    weights, inputs = read_weights(model), ragged(model)
    halved = rounded(weights)
    graphs = [
        build_model(chosen, plan_of(model), form=Form(half=half), means="embedding")
        for chosen, half in ((halved, True), (halved, False), (weights, False))
    ]
    stored, plain, exact = (answer(opened(graph), arrays(inputs), "sentence_embedding")[0] for graph in graphs)
    np.testing.assert_allclose(stored, plain, **TOLERANCE)
    assert 1e-6 < float(np.abs(stored - exact).max())
    assert graphs[0].ByteSize() < 0.7 * graphs[1].ByteSize()


def test_albert_is_stored_once() -> None:
    sizes = {family: graph_of(gated(family)).ByteSize() for family in ("albert", "bert")}
    assert sizes["albert"] < 0.6 * sizes["bert"]


def test_only_standard_operators() -> None:
    graph = graph_of(gated("mpnet", reads="mean"), kept=True, dial=True)
    assert [(each.domain, each.version) for each in graph.opset_import] == [("", 20)]
    assert not any(node.op_type.startswith("Scatter") for node in graph.graph.node)


def test_what_cannot_be_computed_is_refused() -> None:
    model = gated("bert", reads="mean", protect=("separators",), separator_id=SEPARATOR)
    with pytest.raises(ModelError, match="lets texts lose all their tokens"):
        graph_of(model)
    with pytest.raises(ModelError, match="the activation softsign cannot be exported; those that can are: gelu,"):
        known_activation(torch.nn.functional.softsign)
