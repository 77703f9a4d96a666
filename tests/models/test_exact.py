"""Newer families in float64: the stock layers with dropped tokens masked, tokens really removed, the attached model and
the reference engine give the same; decisions are compared apart from values."""

import math
from typing import Any

import pytest
import torch

from tests.engine.makers import engine_with, reference
from tests.models.families import LAYERS, SOME, prune_with_, ragged, run, stock_precision, tiny_model
from tests.models.stock import stock_masked
from tests.models.twin import physically_dropped

LENGTHS = (64, 65, 66, 128, 129, 130, 255, 256, 257, 1000)
ROOM = {"max_position_embeddings": 1024}


def kind_of(name: str) -> str:
    return "eager" if name == "deberta-v2" else "sdpa"


def all_agree(name: str, length: int, *, seed: int = 0, reads: str = "first", **changes: Any) -> list[list[int]]:
    """What every layer kept, when all four ways agree on it and on what came out."""
    changes = {**ROOM, **changes}
    stock, model = (tiny_model(name, seed=seed, attention=kind_of(name), **changes) for _ in range(2))
    prune_with_(model, SOME)
    inputs = ragged(model, (length,), seed=seed)
    ids = inputs["input_ids"][0]
    logits, trace = run(model, inputs)
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state[0]
    kept = [alive[0].nonzero().flatten().tolist() for alive in trace.alive[1:]]

    twin = physically_dropped(model, ids, SOME)
    assert twin.kept == kept
    torch.testing.assert_close(hidden[kept[-1]], twin.hidden, atol=1e-9, rtol=0)
    masked = stock_masked(stock, ids, kept)
    torch.testing.assert_close(masked[kept[-1]], twin.hidden, atol=max(1e-9, stock_precision(name)), rtol=0)

    output = engine_with(model, reference(torch.float64)).compute([ids.tolist()])
    torch.testing.assert_close(output.outputs, logits, atol=1e-9, rtol=0)
    collapsed = reads == "first"
    wanted = [len(part) for part in kept[: LAYERS - collapsed]] + [1] * collapsed
    assert output.kept.tolist() == [wanted]
    assert 1 < len(kept[-1]) < length // 2, "tokens are dropped, and not all"
    return kept


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_around_its_window(length: int, pooling: str) -> None:
    """The published window: 64 positions to each side."""
    reads = "mean" if pooling == "mean" else "first"
    all_agree("modernbert", length, reads=reads, local_attention=128, classifier_pooling=pooling)


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("window", [2, 3, 7, 31, 127, 129])
def test_modernbert_with_other_windows_and_layers(window: int, every: int) -> None:
    kinds = ["sliding_attention" if index % every else "full_attention" for index in range(LAYERS)]
    all_agree("modernbert", 150, seed=window, local_attention=window, layer_types=kinds)


def test_modernbert_without_biases() -> None:
    nothing = {f"{part}_bias": False for part in ("norm", "attention", "mlp", "classifier")}
    all_agree("modernbert", 100, **nothing)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["nomic_bert", "gte"])
def test_rotary_families(name: str, length: int) -> None:
    all_agree(name, length, seed=length)


def test_gte_without_token_types() -> None:
    all_agree("gte", 90, type_vocab_size=0)


@pytest.mark.parametrize("length", [*LENGTHS, 511, 513, 600])
def test_deberta_v3(length: int) -> None:
    """Distances beyond the last bucket, and texts beyond 512 tokens; 256 buckets over 512 positions, as published."""
    all_agree("deberta-v2", length, seed=length, position_buckets=256, max_relative_positions=512)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("size", [0, 3, 5])
@pytest.mark.parametrize("buckets", [4, 8, 32])
def test_deberta_v2(share: bool, size: int, buckets: int) -> None:
    all_agree("deberta-v2", 100, share_att_key=share, conv_kernel_size=size, position_buckets=buckets)


def test_deberta_with_positions_and_types_in_its_embeddings() -> None:
    all_agree("deberta-v2", 66, position_biased_input=True, type_vocab_size=2, conv_kernel_size=3)


@pytest.mark.parametrize("name", ["nomic_bert", "modernbert", "deberta-v2"])
def test_positions_are_original_ones(name: str) -> None:
    """Renumbering the survivors gives another answer, so agreement proves where rotations and windows come from."""
    kept = all_agree(name, 66)
    model = tiny_model(name, attention=kind_of(name), **ROOM)
    ids = ragged(model, (66,))["input_ids"][0]
    right, wrong = (physically_dropped(model, ids, SOME, given=kept, renumber=renumber) for renumber in (False, True))
    assert (right.hidden - wrong.hidden).abs().max() > 1e-2


def test_a_window_as_wide_as_the_text_is_none() -> None:
    thresholds = (-math.inf,) * LAYERS
    outcomes = []
    for window in (200, 202):
        model = tiny_model("modernbert", attention="sdpa", local_attention=window)
        prune_with_(model, thresholds)
        outcomes.append(run(model, ragged(model, (60,)))[0])
    assert torch.equal(*outcomes)
