"""NomicBERT, ModernBERT and DeBERTa on the GPU, in all their kinds: the reference's decisions and values; without a
GPU, interpreted."""

import functools
from typing import Any

import pytest
import torch

from tests.engine.makers import engine_with, reference
from tests.engine.test_cuda_executor import (  # (a fixture, used by every test)
    DEVICE,
    HALVES,
    MODES,
    assert_same,
    executor,
    expected_of,
    needs_triton,  # noqa: F401
    texts,
)
from tests.models.families import LAYERS, SEPARATOR, SOME, prune_with_, tiny_model
from thresher.engine.cuda import products
from thresher.errors import ModelError

ROOM = {"max_position_embeddings": 8192}
NO_BIASES = {f"{part}_bias": False for part in ("norm", "attention", "mlp", "classifier")}
LOCAL = ["sliding_attention"] * LAYERS
PUBLISHED: dict[str, dict[str, int]] = {
    "nomic_bert": {},
    "modernbert": {"local_attention": 128},
    "deberta-v2": {"position_buckets": 256, "max_relative_positions": 512},
}
AROUND_WINDOWS = (64, 65, 66, 128, 129, 130, 255, 256, 257)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("modernbert", {"classifier_pooling": "mean"}),
    "no biases": ("modernbert", NO_BIASES),
    "an odd window": ("modernbert", {"local_attention": 7}),
    "every second layer global": (
        "modernbert",
        {"layer_types": ["full_attention", "sliding_attention"] * (LAYERS // 2)},
    ),
    "local in every layer": ("modernbert", {"layer_types": LOCAL}),
    "tags": ("modernbert", {"means": "tags"}),
    "own projections": ("deberta-v2", {"share_att_key": False}),
    "queries only": ("deberta-v2", {"pos_att_type": ["c2p"]}),
    "keys only": ("deberta-v2", {"pos_att_type": ["p2c"]}),
    "no buckets": ("deberta-v2", {"position_buckets": -1}),
    "a convolution": ("deberta-v2", {"conv_kernel_size": 3}),
    "a wide convolution in groups": ("deberta-v2", {"conv_kernel_size": 5, "conv_groups": 4, "conv_act": "gelu"}),
    "positions and types": ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
    "spans": ("deberta-v2", {"means": "span"}),
}


def pruned(name: str, thresholds: tuple[float, ...] = SOME, **changes: Any) -> Any:
    model = tiny_model(name, **changes)
    prune_with_(model, thresholds)
    return model


@pytest.mark.parametrize("mode", MODES if DEVICE == "cuda" else MODES[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, mode: str) -> None:
    name, changes = KINDS[kind]
    model = pruned(name, **changes)
    ids = texts(model)
    expected = expected_of(model, ids)
    assert int(expected.kept[:, 1].sum()) < 0.8 * sum(map(len, ids))
    engine = executor(model, mode)
    for _ in range(2 if DEVICE == "cuda" else 1):  # a graph, and its replay
        assert_same(engine.compute(ids), expected)


@pytest.mark.parametrize("name", ["modernbert", "nomic_bert"])
def test_gates_and_turns_in_passes_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products end in them, there is no pass; where they do not, the answers are the same."""

    def fail(*given: Any, **named: Any) -> None:
        raise AssertionError("a pass of its own")

    model = pruned(name, num_attention_heads=2)  # 16 numbers wide: narrower ones always take a pass
    ids = texts(model)
    with monkeypatch.context() as patch:
        for kernel in ("rotate_", "gated"):
            patch.setattr(products, kernel, fail)
        assert_same(executor(model, "graph").compute(ids), expected_of(model, ids))
        patch.setattr(products, "IN_ITS_END", frozenset())
        with pytest.raises(AssertionError, match="a pass of its own"):
            executor(model, "graph").compute(ids)
    monkeypatch.setattr(products, "IN_ITS_END", frozenset())
    assert_same(executor(model, "graph").compute(ids), expected_of(model, ids))


@pytest.mark.parametrize("thresholds", [(float("inf"), 0.5, 0.5, 0.5), (0.5, float("inf"), 0.0, 0.0)], ids=str)
@pytest.mark.parametrize(("name", "kernel"), [("modernbert", 0), ("deberta-v2", 0), ("deberta-v2", 3)])
def test_first_tokens_alone(name: str, kernel: int, thresholds: tuple[float, ...]) -> None:
    changes = {"conv_kernel_size": kernel} if kernel else {}
    model = pruned(name, thresholds, **changes)
    ids = texts(model, (11, 1, 16))
    for mode in MODES:
        assert_same(executor(model, mode).compute(ids), expected_of(model, ids))


@pytest.mark.parametrize("lengths", [(300, 1, 131), pytest.param(AROUND_WINDOWS, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize(("name", "changes"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_longer_than_a_tile(name: str, changes: dict[str, Any], lengths: tuple[int, ...]) -> None:
    model = pruned(name, **ROOM, **changes)
    ids = texts(model, lengths)
    assert_same(executor(model, "graph").compute(ids), expected_of(model, ids))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [(1000, 513), (8192, 40)], ids=str)
@pytest.mark.parametrize(("name", "changes"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_long_texts(name: str, changes: dict[str, Any], lengths: tuple[int, ...], mode: str) -> None:
    """Dense, so that no decision among thousands is left to rounding, and pruned by kept counts that are near."""
    model = pruned(name, (0.0,) * LAYERS, **ROOM, **changes)
    ids = texts(model, lengths)
    assert_same(executor(model, mode).compute(ids), expected_of(model, ids))
    model = pruned(name, **ROOM, **changes)
    found, expected = executor(model, mode).compute(ids), expected_of(model, ids)
    assert int((found.kept - expected.kept).abs().max()) <= 2
    assert int(expected.kept[:, 1].sum()) < 0.8 * sum(lengths)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "changes"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_half_precision_on_long_texts(name: str, changes: dict[str, Any], dtype: str) -> None:
    """At most twice the error of the reference in this dtype, on average."""
    model = pruned(name, (0.0,) * LAYERS, **ROOM, **changes)
    ids = texts(model, (700, 300, 129, 30))
    exact = expected_of(model, ids).outputs
    plain = engine_with(model, reference(HALVES[dtype], DEVICE)).compute(ids).outputs
    for mode in MODES:
        found = executor(model, mode, dtype).compute(ids).outputs
        error, allowed = (float((each - exact).abs().mean()) for each in (found, plain))
        assert error <= 2 * allowed + 1e-4, f"error {error:.3g}, plain torch {allowed:.3g}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["modernbert", "deberta-v2"])
@pytest.mark.parametrize("mode", MODES)
def test_ten_runs_are_equal_to_the_last_bit(mode: str, name: str) -> None:
    model = pruned(name)
    ids, engine = texts(model), executor(model, mode, "fp16")
    first = engine.compute(ids)
    for _ in range(9):
        again = engine.compute(ids)
        assert torch.equal(first.outputs, again.outputs) and torch.equal(first.kept, again.kept)


@pytest.mark.parametrize("name", ["modernbert", "deberta-v2"])
def test_a_text_does_not_notice_its_neighbours(name: str) -> None:
    model = pruned(name)
    ids, engine = texts(model), executor(model, "graph")
    together = engine.compute(ids)
    for row in (0, 1):
        alone = engine.compute([ids[row]])
        assert torch.equal(alone.kept[0], together.kept[row])
        torch.testing.assert_close(alone.outputs[0], together.outputs[row], atol=1e-4, rtol=1e-4)


def test_a_norm_that_is_missing_elsewhere_is_refused() -> None:
    model = pruned("modernbert")
    model.base_model.layers[1].attn_norm = torch.nn.Identity()
    with pytest.raises(ModelError, match="a norm is missing but the very first one of pre-norm layers; use device"):
        executor(model, "sync")


@pytest.mark.parametrize("mode", MODES)
def test_a_text_that_loses_all_its_tokens_is_refused_as_on_the_cpu(mode: str) -> None:
    """A head that reads every token need not protect first ones, and a text may have no separator."""
    model = tiny_model("bert", means="tags")
    prune_with_(model, (5.0,) * LAYERS, protect=("separators",), separator_id=SEPARATOR)
    bare, other = [11, 12, 13], [21, 22, SEPARATOR]
    engine = executor(model, mode)
    for compute in (engine.compute, functools.partial(expected_of, model)):
        with pytest.raises(ModelError, match=r"a text lost all its tokens, of which protect = \['separators'\] names"):
            compute([bare, other])
    assert_same(engine.compute([other]), expected_of(model, [other]))
