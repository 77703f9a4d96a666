"""The public engine on the GPU: the same texts in, the same predictions out; without a GPU, interpreted."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli import tiny
from tests.engine.test_cuda_executor import needs_triton  # noqa: F401 (a fixture, used by every test)
from tests.models.families import LAYERS, pruned_model, tiny_model
from thresher.engine import choose
from thresher.engine.cuda import executor as module
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.engine import Engine, Prediction
from thresher.errors import ConfigError
from thresher.models.checkpoint import save

ON_GPU = torch.cuda.is_available()
# Where there is no GPU the same tests run in Triton's interpreter, so the marker would only switch them off.
pytestmark = [pytest.mark.gpu] if ON_GPU else []

TEXTS = [
    "good film",
    "the plot is very dull and the cast is cold",
    "film",
    "a clever joke with a warm ending and a fine score and a great cast",
    "bad scenes",
    "the ending is clumsy",
    "poor",
]
MODES = ("sync", "graph")
SEED = 2  # of models that give the texts different labels


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: the way from Engine to CudaExecutor is the same, and at its end is the interpreter."""
    if not ON_GPU:
        monkeypatch.setattr(choose, "gpu_problem", lambda dtype="auto": "")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
        monkeypatch.setattr(module, "CudaExecutor", partial(CudaExecutor, device="cpu"))


def on_gpu(model: Any, mode: str = "graph", **options: Any) -> Engine:
    """In fp32, where decisions can be compared one by one."""
    return Engine.from_model(model, tiny.tokenizer(), device="cuda", mode=mode, **{"dtype": "fp32", **options})


def on_cpu(model: Any, **options: Any) -> Engine:
    return Engine.from_model(model, tiny.tokenizer(), device="cpu", backend="reference", **options)


def assert_same(found: list[Prediction], expected: list[Prediction], *, within: float = 2e-4) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("label", "tokens", "kept", "truncated", "error"):
            assert getattr(ours, name) == getattr(theirs, name)
        for name in ("probability", "value"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=within)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "score"), [("bert", "attention"), ("mpnet", "attention"), ("mpnet", "value")])
def test_agrees_with_the_reference_on_the_cpu(name: str, score: str, mode: str) -> None:
    model = pruned_model(name, seed=SEED, score=score)
    expected = on_cpu(model).classify(TEXTS)
    assert len({item.label for item in expected}) > 1
    assert any(item.kept[LAYERS - 2] < item.tokens for item in expected)
    assert_same(on_gpu(model, mode).classify(TEXTS), expected)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"] if ON_GPU else ["fp16"])  # the interpreter cuts bf16
def test_half_precision_is_near(dtype: str) -> None:
    """Dense, so that rounding cannot flip a decision to drop; labels where the reference is sure of them."""
    model = tiny_model("bert", seed=SEED)
    expected = on_cpu(model).classify(TEXTS)
    unit = 2**-10 if dtype == "fp16" else 2**-7
    for mode in MODES:
        for ours, theirs in zip(on_gpu(model, mode, dtype=dtype).classify(TEXTS), expected, strict=True):
            assert ours.kept == theirs.kept
            assert ours.probability == pytest.approx(theirs.probability, abs=16 * unit)
            assert ours.label == theirs.label or (theirs.probability or 0) < 0.5 + 16 * unit


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_keeps_its_order_whatever_the_batches(mode: str) -> None:
    """Windows are packed in the background while the ones before are computed, and graphs are captured meanwhile."""
    model = pruned_model("bert", seed=SEED)
    expected = on_cpu(model).classify(TEXTS)
    engine = on_gpu(model, mode)
    repeats = 4 if ON_GPU else 1

    def texts() -> Iterator[str]:
        for _ in range(repeats):
            yield from TEXTS

    for max_tokens, window in ((1, 3), (20, 2), (10_000, 1024)):
        found = list(engine.predict(texts(), max_tokens=max_tokens, window=window))
        assert_same(found, expected * repeats)


def test_a_bad_text_harms_only_itself() -> None:
    model = pruned_model("bert", seed=SEED)
    bad: list[Any] = ["", "half \ud800 character", 7, ("a", "b", "c"), None]
    items = [item for pair in zip(bad, TEXTS, strict=False) for item in pair]
    found = on_gpu(model).classify(items)
    assert all(item.error is not None and item.label is None for item in found[0::2])
    assert_same(found[1::2], on_cpu(model).classify(TEXTS[: len(bad)]))
    assert all(item.error for item in on_gpu(model).classify(bad)), "a window without a good text has no batch"
    assert on_gpu(model).classify([]) == []


def test_pairs_and_long_texts() -> None:
    model = pruned_model("bert", seed=SEED)
    items: list[Any] = [("good film", "the plot is dull"), "film " * 100, "good film"]
    found = on_gpu(model).classify(items)
    assert_same(found, on_cpu(model).classify(items))
    assert [item.truncated for item in found] == [False, True, False]


@pytest.mark.parametrize("mode", MODES)
def test_dial(mode: str) -> None:
    model = pruned_model("bert", seed=SEED)
    for dial in (0.0, 1.3):
        found = on_gpu(model, mode, dial=dial).classify(TEXTS)
        assert_same(found, on_cpu(model, dial=dial).classify(TEXTS))
        assert all(item.kept[0] == item.tokens for item in found) == (dial == 0)


def test_regression() -> None:
    model = tiny_model("bert", num_labels=1)
    found = on_gpu(model).classify(TEXTS)
    assert_same(found, on_cpu(model).classify(TEXTS), within=2e-3)
    assert all(item.label is None and item.value is not None for item in found)


@pytest.mark.parametrize("mode", MODES)
def test_threads_may_share_an_engine(mode: str) -> None:
    """Also while one of them captures a graph: every thread begins with a size that is new."""
    model = pruned_model("bert", seed=SEED)
    parts = [TEXTS[:1], TEXTS[1:4], TEXTS[4:], TEXTS] * (5 if ON_GPU else 1)
    alone = on_gpu(model, mode)
    expected = [alone.classify(part) for part in parts]
    shared = on_gpu(model, mode)
    with ThreadPoolExecutor(2) as pool:
        for found, wanted in zip(pool.map(shared.classify, parts), expected, strict=True):
            assert_same(found, wanted, within=1e-5)


def test_describe_says_what_was_chosen_and_why() -> None:
    model = pruned_model("bert", seed=SEED)
    about = on_gpu(model, "sync").describe()
    assert about["device"] == ("cuda" if ON_GPU else "cpu")
    names = ("backend", "dtype", "mode", "mode_why", "why")
    assert [about[name] for name in names] == ["cuda", "fp32", "sync", "sync was asked for", "fp32 was asked for"]
    about = Engine.from_model(model, tiny.tokenizer()).describe()
    assert (about["backend"], about["dtype"], about["mode"]) == ("cuda", "fp16", "auto")
    assert about["why"].startswith("half precision with float32 scores and sums; on the GPU found here (")
    assert "one CUDA graph" in about["mode_why"]
    with pytest.raises(ConfigError, match="dtype = 'int8' is not one of the cuda backend: auto, fp16, bf16, fp32"):
        on_gpu(model, dtype="int8")


@pytest.mark.parametrize("score", ["attention", "value"])
def test_a_saved_run(tmp_path: Path, score: str) -> None:
    model = pruned_model("bert", seed=SEED, score=score).float()
    save(model, tiny.tokenizer(), tmp_path / "run")
    engine = Engine.load(tmp_path / "run", device="cuda", backend="cuda", dtype="fp32", mode="sync", dial=1.3)
    assert (engine.describe()["backend"], engine.describe()["mode"]) == ("cuda", "sync")
    assert_same(engine.classify(TEXTS), on_cpu(model, dial=1.3).classify(TEXTS))


def test_batches_are_bigger_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the caller says how big."""
    model, seen = tiny_model("bert", seed=SEED), []
    for engine in (on_gpu(model), on_cpu(model)):
        monkeypatch.setattr(engine, "_stream", lambda items, *, max_tokens, **rest: seen.append(max_tokens) or [])
        engine.predict(TEXTS)
        engine.predict(TEXTS, max_tokens=7)
    assert seen == [32_768, 7, 4096, 7]


def doctor() -> tuple[Any, str]:
    """What it tells machines, and people."""
    said = tiny.succeeds("doctor").out.replace("│", " ")
    return tiny.succeeds("doctor --json").json(), " ".join(said.split())


@pytest.mark.skipif(not ON_GPU, reason="about machines with a GPU")
def test_doctor_on_this_gpu() -> None:
    found, said = doctor()
    major, minor = torch.cuda.get_device_capability()
    assert found["gpu"]["capability"] == f"{major}.{minor}"
    assert found["gpu"]["triton"] and found["gpu"]["problem"] is None
    assert torch.cuda.get_device_name() in said and "the engine can use it" in said


@pytest.mark.parametrize(
    ("names", "problem", "line", "device"),
    [
        (["Model X"], "", "Model X, compute capability 9.0, Triton 3.9: the engine can use it", "cuda"),
        (["Model X"], "too old", "compute capability 9.0, Triton 3.9: the engine cannot use it, too old", "cpu"),
        ([], "torch sees no CUDA device", "CUDA no: torch sees no CUDA device", "cpu"),
    ],
)
def test_doctor(monkeypatch: pytest.MonkeyPatch, names: list[str], problem: str, line: str, device: str) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.9" if name == "triton" else version(name))
    monkeypatch.setattr(choose, "gpu_problem", lambda dtype="auto": problem)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(names))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *which: names[0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *which: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    found, said = doctor()
    assert line in said
    about = {"capability": "9.0" if names else None, "triton": "3.9", "problem": problem or None}
    assert found["gpu"] == {**about, "fp8_problem": problem or None}
    assert ("also in fp8, for quantized runs" in said) == (device == "cuda")
    assert found["engine"]["device"] == found["engine_quantized"]["device"] == device
    if device == "cuda":
        assert "cuda, fp16: half precision with float32 scores and sums" in said
    else:
        assert found["engine"]["why"].endswith(problem)
