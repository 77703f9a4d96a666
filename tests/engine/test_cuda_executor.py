"""The GPU classifier drops what the reference drops, in both ways of running; without a GPU, interpreted."""

import math
import os
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from itertools import cycle, product
from typing import Any

import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.makers import engine_with, reference  # noqa: E402
from tests.models.families import (  # noqa: E402
    FAMILIES,
    LAYERS,
    POSITIONS,
    SEPARATOR,
    SOME,
    prune_with_,
    ragged,
    tiny_model,
)
from thresher.core.plan import PruningPlan  # noqa: E402
from thresher.engine.cuda import executor as module  # noqa: E402
from thresher.engine.cuda import graphs, live, products  # noqa: E402
from thresher.engine.cuda.executor import CudaExecutor  # noqa: E402
from thresher.engine.executor import Output  # noqa: E402
from thresher.engine.kernels import plans  # noqa: E402
from thresher.engine.weights import read_weights  # noqa: E402
from thresher.errors import ConfigError, ModelError  # noqa: E402
from thresher.models.attach import gates_of  # noqa: E402
from thresher.models.plan import plan_of  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODES = ("sync", "graph")
MIXED = (11, 1, 33, 3)  # one past a tile
SHORT = (11, 7, 16)


@pytest.fixture(autouse=True)
def needs_triton() -> None:
    if find_spec("triton") is None:
        pytest.skip("needs Triton, which is not installed: pip install triton")


def in_turn(every: Iterable[str], ways: Collection[str]) -> list[tuple[str, str]]:
    """On a GPU all pairs. Interpreted they take half a second each, and there each of `every` goes one of the ways, the
    next one the next: what one way does for itself does not know what it is done to."""
    if DEVICE == "cuda":
        return list(product(every, ways))
    return list(zip(every, cycle(ways), strict=False))


def texts(model: Any, lengths: tuple[int, ...] = MIXED) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(ragged(model, lengths)["input_ids"], lengths, strict=True)]


def pruned(name: str, thresholds: tuple[float, ...] = SOME, **settings: Any) -> Any:
    model = tiny_model(name)
    prune_with_(model, thresholds, **settings)
    return model


def executor(model: Any, mode: str, dtype: str = "fp32", dial: float = 1.0) -> CudaExecutor:
    return CudaExecutor(read_weights(model), plan_of(model, dial=dial), dtype=dtype, mode=mode, device=DEVICE)


def expected_of(model: Any, ids: list[list[int]], types: Any = None, dial: float = 1.0) -> Output:
    return engine_with(model, reference(), dial).compute(ids, types)


def assert_same(found: Output, expected: Output) -> None:
    assert found.kept.tolist() == expected.kept.tolist()
    assert found.outputs.dtype == torch.float32 and not found.outputs.is_cuda
    torch.testing.assert_close(found.outputs, expected.outputs.float(), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("name", "mode"), in_turn(FAMILIES, MODES))
def test_agrees_with_the_reference(name: str, mode: str) -> None:
    model = pruned(name)
    ids = texts(model)
    expected = expected_of(model, ids)
    assert int(expected.kept[:, -2].sum()) < 0.6 * sum(MIXED)
    assert_same(executor(model, mode).compute(ids), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_by_value_every_family_agrees_with_the_reference(name: str, mode: str) -> None:
    model = pruned(name, score="value")
    ids = texts(model)
    expected = expected_of(model, ids)
    assert int(expected.kept[:, -2].sum()) < 0.7 * sum(MIXED)
    assert_same(executor(model, mode).compute(ids), expected)


VARIANTS: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "separators": (SOME, {"protect": ("first", "separators"), "separator_id": SEPARATOR}),
    "first segment": (SOME, {"protect": ("first", "first_segment"), "separator_id": SEPARATOR}),
    "paper scale": ((0.05, 0.08, 0.1, 0.1), {"scale": "paper"}),
    "all but the first at layer 2": ((0.5, math.inf, 0.5, 0.5), {}),
    "first tokens alone from layer 2 on, nothing to compare": ((0.0, math.inf, 0.0, 0.0), {}),
    "first tokens alone from layer 1 on": ((math.inf, 0.5, 0.5, 0.5), {}),
    "all but separators at layer 2": (
        (0.5, math.inf, 0.5, 0.5),
        {"protect": ("first", "separators"), "separator_id": SEPARATOR},
    ),
    "quiet and negative": ((0.0, -1.0, 0.9, 0.0), {}),
    "by value": (SOME, {"score": "value", "protect": ("first", "separators"), "separator_id": SEPARATOR}),
    "by value, paper scale": ((0.05, 0.08, 0.1, 0.1), {"score": "value", "scale": "paper"}),
    "one query in four": (SOME, {"score_queries": 4}),
    "one query in three, paper scale": ((0.05, 0.08, 0.1, 0.1), {"score_queries": 3, "scale": "paper"}),
    "the first token's attention, by value": (SOME, {"score_queries": 0, "score": "value"}),
}


@pytest.mark.parametrize(("variant", "mode"), in_turn(VARIANTS, MODES))
def test_every_rule_of_the_gates(variant: str, mode: str) -> None:
    """Also with separators, and with padding ids inside a text, which RoBERTa leaves out of its positions."""
    thresholds, settings = VARIANTS[variant]
    model = pruned("roberta", thresholds, **settings)
    ids = texts(model, SHORT)
    ids[0][4] = ids[2][9] = SEPARATOR
    ids[1][3] = model.config.pad_token_id
    assert_same(executor(model, mode).compute(ids), expected_of(model, ids))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [(1,), (9,), (1, 1, 1), (POSITIONS,), (3, 30)], ids=str)
def test_batches_of_any_shape(lengths: tuple[int, ...], mode: str) -> None:
    model = pruned("bert")
    ids = texts(model, lengths)
    assert_same(executor(model, mode).compute(ids), expected_of(model, ids))


@pytest.mark.parametrize("mode", MODES)
def test_dial_and_token_types(mode: str) -> None:
    model = pruned("bert")
    ids, types = [[11, 12, 13, 14], [14, 15], [16, 17, 18]], [[0, 0, 1, 1], None, [0, 1, 1]]
    for dial in (0.0, 1.3):
        found = executor(model, mode, dial=dial).compute(ids, types)
        assert_same(found, expected_of(model, ids, types, dial))
    assert found.kept[:, 1].tolist() != [4, 2, 3]


@pytest.mark.parametrize(
    ("name", "mode", "score"),
    [("bert", "sync", "attention"), ("mpnet", "graph", "attention"), ("bert", "graph", "value")],
)
def test_a_text_does_not_notice_its_neighbours(name: str, mode: str, score: str) -> None:
    model = pruned(name, score=score)
    ids, engine = texts(model), executor(model, mode)
    together = engine.compute(ids)
    for row in (0, 1):
        alone = engine.compute([ids[row]])
        assert torch.equal(alone.kept[0], together.kept[row])
        torch.testing.assert_close(alone.outputs[0], together.outputs[row], atol=1e-4, rtol=1e-4)


def test_products_in_parts_and_other_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What base-size models do at batch 1, and what a kernel does not know."""
    monkeypatch.setattr(products, "plan", lambda *_, divisible=False, **__: (plans.PLAIN_TILE, 2 if divisible else 1))
    model = tiny_model("bert", hidden_act="relu")
    prune_with_(model)
    ids = texts(model, SHORT)
    engine = executor(model, "graph")
    assert engine.model.layers[0].activation == "none"
    assert_same(engine.compute(ids), expected_of(model, ids))


def test_the_approximate_gelu() -> None:
    model = tiny_model("albert")
    prune_with_(model)
    ids, engine = texts(model, SHORT), executor(model, "sync")
    assert engine.model.layers[0].activation == "gelu_tanh"
    assert_same(engine.compute(ids), expected_of(model, ids))


@pytest.mark.parametrize(("mode", "allowed"), [("sync", 3), ("graph", 0)])
def test_how_often_the_host_waits(mode: str, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per pruning layer and once for the results; a quiet layer costs nothing. A graph waits for its end alone."""
    model = pruned("bert", (0.0, 0.8, 0.9, 1.0))
    engine, ids = executor(model, mode), texts(model, (5, 9))
    packed = engine.pack(ids)
    if DEVICE == "cuda":
        engine.run(packed)  # compiles and captures
        torch.cuda.set_sync_debug_mode("error")
    waits, to_host = [], live.to_host

    def counted(values: torch.Tensor) -> torch.Tensor:
        waits.append(values)
        return to_host(values)

    monkeypatch.setattr(live, "to_host", counted)
    monkeypatch.setattr(module, "to_host", counted)
    try:
        engine.run(packed)
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == allowed


def test_buckets() -> None:
    def bucket(tokens: int, sequences: int, longest: int) -> tuple[int, int, int]:
        found = graphs.bucket_of(tokens=tokens, sequences=sequences, longest=longest, positions=512, typed=True)
        return found.tokens, found.sequences, found.max_length

    assert bucket(1, 1, 1) == (32, 1, 32)
    assert bucket(52, 1, 52) == (64, 1, 64)
    assert bucket(600, 2, 512) == (768, 4, 512)
    assert bucket(13312, 256, 114) == (13312, 256, 128)
    assert bucket(8193, 200, 300) == (8704, 256, 512)
    assert [bucket(9000, sequences, 9)[1] for sequences in (1, 3, 4, 5, 16, 17, 64, 257)] == [
        1,
        4,
        4,
        16,
        16,
        64,
        64,
        1024,
    ]
    for tokens in range(1, 20000, 77):
        room = bucket(tokens, 1, 1)[0]
        assert tokens <= room <= max(32, 1.5 * tokens if tokens <= 2048 else tokens + tokens / 16 + 1)


def test_tiles_are_chosen_for_the_tokens_of_the_first_batch() -> None:
    """In all, and after each pruning: what came back is read as it was written."""
    model = pruned("bert")
    engine, ids = executor(model, "graph"), texts(model)
    batch = engine.pack(ids)
    run = engine.lanes[0].run
    result = run(batch.layout.views(batch.buffer.to(DEVICE)), batch.layout, None).cpu()
    kept = engine.run(batch).kept[:, list(engine.plan.pruning_layers)].sum(0).tolist()
    assert run.tokens_seen(result, batch.layout) == [sum(map(len, ids)), *kept]


def test_a_matrix_that_descriptors_cannot_hold_is_refused() -> None:
    model = tiny_model("bert", intermediate_size=36)
    with pytest.raises(ModelError, match="36 inputs, and the GPU kernels need a multiple of 8"):
        CudaExecutor(read_weights(model), PruningPlan.dense(LAYERS), mode="sync", device=DEVICE)


def test_auto_goes_by_tokens_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = executor(pruned("bert"), "auto")
    monkeypatch.setattr(module, "GRAPH_UP_TO_TOKENS", 5)
    assert [engine.pack([[11] * n]).mode for n in (5, 6)] == ["graph", "sync"]
    assert "up to 5 tokens run as one CUDA graph" in engine.describe()["mode_why"]
    assert executor(pruned("bert"), "sync").describe()["mode_why"] == "sync was asked for"


def test_bad_input() -> None:
    model = pruned("bert")
    engine = executor(model, "sync")
    for bad in ([[1, 2], []], []):
        with pytest.raises(ModelError, match="at least one token"):
            engine.compute(bad)
    with pytest.raises(ModelError, match="65 tokens are more than the model's 64 positions"):
        engine.compute([[11] * 65])
    with pytest.raises(ConfigError, match="mode = 'fast' is not one of the cuda backend's: auto, sync, graph"):
        executor(model, "fast")
    with pytest.raises(ConfigError, match="dtype = 'int8' is not one of the cuda backend's"):
        executor(model, "sync", "int8")
    with pytest.raises(ConfigError, match="dial = -1"):
        executor(model, "sync", dial=-1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu() -> None:
    weights = read_weights(tiny_model("bert"))
    with pytest.raises(ModelError, match="device cuda is not available here"):
        CudaExecutor(weights, PruningPlan.dense(LAYERS))


HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def half_precision_is_as_exact_as_plain_torch(name: str, mode: str, dtype: str) -> None:
    """Values under the same decisions (nothing is dropped): at most twice the error of the reference in this dtype.

    On average; the largest of a dozen logits is left to chance, so it has room for four times.
    """
    model = pruned(name, (0.0,) * LAYERS)
    ids = texts(model, (16, 1, 7, 33))
    exact = expected_of(model, ids).outputs
    plain = engine_with(model, reference(HALVES[dtype], DEVICE)).compute(ids)
    found = executor(model, mode, dtype).compute(ids)
    error, allowed = ((each.outputs - exact).abs() for each in (found, plain))
    assert error.mean() <= 2 * allowed.mean() + 1e-4, f"error {error.mean():.3g}, plain torch {allowed.mean():.3g}"
    assert error.max() <= 4 * allowed.max() + 1e-4


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_in_the_interpreter(mode: str) -> None:
    """fp16 only: the interpreter cuts bfloat16 instead of rounding it."""
    half_precision_is_as_exact_as_plain_torch("mpnet", mode, "fp16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision(name: str, mode: str, dtype: str) -> None:
    half_precision_is_as_exact_as_plain_torch(name, mode, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", MODES)
def test_ten_runs_are_equal_to_the_last_bit(mode: str, dtype: str, score: str) -> None:
    model = pruned("mpnet", score=score)
    ids, engine = texts(model), executor(model, mode, dtype)
    first = engine.compute(ids)
    for _ in range(9):
        again = engine.compute(ids)
        assert torch.equal(first.outputs, again.outputs) and torch.equal(first.kept, again.kept)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_both_ways_give_the_same(name: str, dtype: str) -> None:
    """Dense, so that rounding in the products cannot flip a decision; those are compared in float32 above."""
    model = pruned(name, (0.0,) * LAYERS)
    ids = texts(model, (16, 1, 7, 33))
    sync, graph = (executor(model, mode, dtype).compute(ids) for mode in MODES)
    assert torch.equal(sync.kept, graph.kept)
    unit = 2**-10 if dtype == "fp16" else 2**-7
    assert float((sync.outputs - graph.outputs).abs().max()) <= 8 * unit * float(sync.outputs.abs().max())


@pytest.mark.gpu
def test_few_graphs_are_kept_and_evicted_ones_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "GRAPHS", 2)
    model = pruned("bert")
    engine = executor(model, "graph")
    batches = [texts(model, lengths) for lengths in ((5,), (40, 1), (60, 60), (5,), (7, 7, 30))]
    for ids in batches:
        assert_same(engine.compute(ids), expected_of(model, ids))
        assert all(len(lane.captured) <= 2 for lane in engine.lanes)


def test_what_no_table_has_is_refused_before_it_is_read() -> None:
    model = pruned("bert")
    for engine in (executor(model, "sync"), executor(model, "graph")):
        for ids, types, says in (
            ([[5, model.config.vocab_size]], None, "token id 60 is outside the model's vocabulary of 60"),
            ([[5, 6], [-1]], None, "token id -1 is outside"),
            ([[5, 6]], [[0, 2]], "token type 2 is not one of the model's 2"),
            ([[5, 6]], [[-1, 0]], "token type -1 is not one"),
        ):
            with pytest.raises(ModelError, match=says):
                engine.compute(ids, types)


def test_another_plan_for_the_same_matrices() -> None:
    """As the benchmark makes it that looks for thresholds: layers that pruned before may not prune now."""
    model = pruned("bert")
    engine, ids = executor(model, "sync"), texts(model)
    for thresholds in ([0.0] * (LAYERS - 1) + [math.inf], [*SOME[:-1], math.inf]):
        other = engine.with_plan(engine.plan.with_thresholds(thresholds))
        gates_of(model).set_thresholds(thresholds)
        assert other.model is engine.model
        assert torch.equal(other.compute(ids).kept, expected_of(model, ids).kept)
