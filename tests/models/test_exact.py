"""Newer families in float64: the stock layers with dropped tokens masked, tokens really removed, the attached model and
the reference engine give the same; decisions are compared apart from values."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.modernbert import modeling_modernbert as stock

from tests.engine.makers import engine_with, reference
from tests.models.families import (
    LAYERS,
    SOME,
    prune_with_,
    ragged,
    run,
    stock_precision,
    tiny_model,
    wide_windows,
)
from tests.models.stock import stock_masked
from tests.models.twin import physically_dropped
from thresher.models.deberta import rows_of_distances

LENGTHS = (64, 65, 66, 128, 129, 130, 255, 256, 257, 1000)
ROOM = {"max_position_embeddings": 1024}


def kind_of(name: str) -> str:
    return "eager" if name == "deberta-v2" else "sdpa"


def all_agree(
    name: str,
    length: int,
    *,
    seed: int = 0,
    reads: str = "first",
    score: str = "attention",
    score_queries: int = 1,
    stock_off_by: float | None = None,
    **changes: Any,
) -> list[list[int]]:
    """What every layer kept, when all four ways agree on it and on what came out."""
    off_by = stock_precision(name) if stock_off_by is None else stock_off_by
    changes = {**ROOM, **changes}
    plain, model = (tiny_model(name, seed=seed, attention=kind_of(name), **changes) for _ in range(2))
    prune_with_(model, SOME, score=score, score_queries=score_queries)
    inputs = ragged(model, (length,), seed=seed)
    ids = inputs["input_ids"][0]
    logits, trace = run(model, inputs)
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state[0]
    kept = [alive[0].nonzero().flatten().tolist() for alive in trace.alive[1:]]

    twin = physically_dropped(model, ids, SOME, by=score, one_in=score_queries)
    assert twin.kept == kept
    torch.testing.assert_close(hidden[kept[-1]], twin.hidden, atol=1e-9, rtol=0)
    masked = stock_masked(plain, ids, kept)
    torch.testing.assert_close(masked[kept[-1]], twin.hidden, atol=max(1e-9, off_by), rtol=0)

    output = engine_with(model, reference(torch.float64)).compute([ids.tolist()])
    torch.testing.assert_close(output.outputs, logits, atol=1e-9, rtol=0)
    collapsed = reads == "first"
    wanted = [len(part) for part in kept[: LAYERS - collapsed]] + [1] * collapsed
    assert output.kept.tolist() == [wanted]
    last = len(kept[-1 if score_queries else 0])  # the first token may want one alone in the end
    assert 1 < last and len(kept[-1]) < length // 2, "tokens are dropped, and not all"
    return kept


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_around_its_window(length: int, pooling: str) -> None:
    """The published window: 64 positions to each side."""
    reads = "mean" if pooling == "mean" else "first"
    all_agree("modernbert", length, seed=length, reads=reads, local_attention=128, classifier_pooling=pooling)


@pytest.mark.parametrize("length", [66, 130, 257])
def test_modernbert_is_off_by_nothing_but_the_precision_of_its_rotation(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stock code turns queries and keys in float32; made to do so in float64, it agrees as the others do."""

    def turned(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return query * cos + stock.rotate_half(query) * sin, key * cos + stock.rotate_half(key) * sin

    monkeypatch.setattr(stock, "apply_rotary_pos_emb", turned)
    all_agree("modernbert", length, seed=length, local_attention=128, stock_off_by=0.0)


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("window", [2, 3, 7, 31, 127, 129])
def test_modernbert_with_other_windows_and_layers(window: int, every: int) -> None:
    kinds = ["sliding_attention" if index % every else "full_attention" for index in range(LAYERS)]
    all_agree("modernbert", 150, seed=window, local_attention=window, layer_types=kinds)


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("score_queries", [4, 8, 0])
@pytest.mark.parametrize("name", ["nomic_bert", "modernbert", "deberta-v2"])
def test_some_queries_stand_for_all(name: str, score_queries: int, score: str) -> None:
    """With texts that end between two of them, and windows that hold some."""
    for length in (64, 67, 131):
        changes = wide_windows(name, score_queries)
        all_agree(name, length, seed=length, score=score, score_queries=score_queries, **changes)


def test_modernbert_without_biases() -> None:
    nothing = {f"{part}_bias": False for part in ("norm", "attention", "mlp", "classifier")}
    all_agree("modernbert", 100, **nothing)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["nomic_bert", "gte"])
def test_rotary_families(name: str, length: int) -> None:
    all_agree(name, length, seed=length)


@pytest.mark.parametrize("length", LENGTHS)
def test_roberta_with_norms_before(length: int) -> None:
    all_agree("roberta-prelayernorm", length, seed=length, max_position_embeddings=1026)


def test_gte_without_token_types() -> None:
    all_agree("gte", 90, type_vocab_size=0)


@pytest.mark.parametrize("length", [*LENGTHS, 511, 513, 600])
def test_deberta_v3(length: int) -> None:
    """Distances beyond the last bucket, and texts beyond 512 tokens; 256 buckets over 512 positions, as published."""
    all_agree("deberta-v2", length, seed=length, position_buckets=256, max_relative_positions=512)


@pytest.mark.parametrize(
    ("buckets", "most"), [(2, 20), (3, 9), (4, 16), (5, 16), (7, 20), (9, 16), (16, 40), (255, 512)]
)
def test_every_distance_has_the_stock_row(buckets: int, most: int) -> None:
    """Those of all texts of up to 8,192 tokens, far beyond where the table of rows ends."""
    rows = rows_of_distances(buckets, buckets, most, longest=8192, device=torch.device("cpu"))
    distances = torch.arange(-8191, 8192)
    wanted = (make_log_bucket_position(distances, buckets, most).long() + buckets).clamp(0, 2 * buckets - 1)
    reach = len(rows) // 2
    assert torch.equal(rows[distances.clamp(-reach, reach) + reach], wanted)
    assert bool((rows.diff() >= 0).all()), "they never fall: executors narrow them by that"


@pytest.mark.parametrize(("buckets", "most"), [(3, 20), (5, 16), (6, 20), (7, 20), (9, 30), (0, 20)])
def test_deberta_far_beyond_its_last_distance(buckets: int, most: int) -> None:
    all_agree("deberta-v2", 300, position_buckets=buckets, max_relative_positions=most)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("size", [0, 3, 5])
@pytest.mark.parametrize("buckets", [4, 8, 20])
def test_deberta_v2(share: bool, size: int, buckets: int) -> None:
    all_agree("deberta-v2", 100, share_att_key=share, conv_kernel_size=size, position_buckets=buckets)


@pytest.mark.parametrize("length", [257, 600])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_over_long_texts(length: int, groups: int) -> None:
    changes = {"position_buckets": 256, "max_relative_positions": 512, "conv_kernel_size": 3, "conv_groups": groups}
    all_agree("deberta-v2", length, seed=length, **changes)


@pytest.mark.parametrize("terms", [["c2p"], ["p2c"]])
def test_deberta_with_one_of_its_terms(terms: list[str]) -> None:
    all_agree("deberta-v2", 66, pos_att_type=terms, conv_kernel_size=3)


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
