"""fp8 on the GPU is its readable twin on the CPU, in every family; without a GPU, interpreted."""

import math
import os
from typing import Any

import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.makers import engine_with, reference  # noqa: E402
from tests.engine.test_cuda_executor import DEVICE, MODES, in_turn, needs_triton, pruned, texts  # noqa: E402, F401
from tests.models.families import FAMILIES, LAYERS, SOME  # noqa: E402
from thresher.engine.backends.eight import EightBits  # noqa: E402
from thresher.engine.cuda import executor as module  # noqa: E402
from thresher.engine.cuda.executor import CudaExecutor  # noqa: E402
from thresher.engine.cuda.model import gpu_model  # noqa: E402
from thresher.engine.executor import Output  # noqa: E402
from thresher.engine.find_scales import find_scales  # noqa: E402
from thresher.engine.packed import PackedExecutor  # noqa: E402
from thresher.engine.weights import LayerScales, read_weights  # noqa: E402
from thresher.errors import ConfigError, ModelError  # noqa: E402
from thresher.models.plan import plan_of  # noqa: E402

# Thresholds by which nothing is dropped that could be decided otherwise.
KEPT = {"all": (0.0,) * LAYERS, "first tokens": (0.0, math.inf, 0.0, 0.0)}
NEAR = 0.05  # of the logits' size: a number that lies between two of e4m3 may become either


def scales_of(model: Any) -> list[LayerScales]:
    return find_scales(model, [(ids, None) for ids in texts(model)])


def in_fp8(model: Any, mode: str, *, exact: bool = True) -> CudaExecutor:
    """exact: with what is not in eight bits in float32, as the twin has it."""
    weights, scales = read_weights(model), scales_of(model)
    made = gpu_model(weights, dtype=torch.float32, device=DEVICE, scales=scales) if exact else None
    return CudaExecutor(weights, plan_of(model), dtype="fp8", mode=mode, device=DEVICE, model=made, scales=scales)


def twin(model: Any) -> Output:
    return PackedExecutor(EightBits(read_weights(model), plan_of(model), scales=scales_of(model))).compute(texts(model))


def apart(found: Output, expected: Output) -> float:
    """Of the logits' own size."""
    return float((found.outputs - expected.outputs).norm() / expected.outputs.norm())


@pytest.mark.parametrize(("name", "kept"), in_turn(FAMILIES, KEPT))
def test_agrees_with_the_twin(name: str, kept: str) -> None:
    model = pruned(name, KEPT[kept])
    found, expected = in_fp8(model, "graph").compute(texts(model)), twin(model)
    plain = engine_with(model, reference()).compute(texts(model))
    assert found.kept.tolist() == expected.kept.tolist()
    # ALBERT's passes share a matrix, which the CPU rounds once for several of them.
    assert apart(found, expected) < (2 * NEAR if name == "albert" else NEAR)
    assert 0 < apart(expected, plain) < 0.4  # eight bits are seen, and the scales are right


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_prunes_and_gathers_in_half_precision(name: str, mode: str) -> None:
    model = pruned(name, SOME)
    found, expected = in_fp8(model, mode, exact=False).compute(texts(model)), twin(model)
    assert float((found.kept == expected.kept).double().mean()) > 0.8
    assert apart(found, expected) < 0.3 and bool(found.outputs.isfinite().all())
    assert int(found.kept[:, -2].sum()) < 0.8 * sum(map(len, texts(model)))


def test_another_dial_shares_the_matrices_and_says_what_it_is() -> None:
    model = pruned("bert")
    engine = in_fp8(model, "graph", exact=False)
    other = engine.with_plan(plan_of(model, dial=0.0))
    assert other.model is engine.model and other.describe()["dtype"] == "fp8"
    assert other.compute(texts(model)).kept[:, 0].tolist() == [len(ids) for ids in texts(model)]


def test_scales_are_needed_and_must_fit() -> None:
    model = pruned("bert")
    weights, plan = read_weights(model), plan_of(model)
    with pytest.raises(ModelError, match=r"int8 scales are not those of this model \(4 layers\)"):
        CudaExecutor(weights, plan, dtype="fp8", device=DEVICE, scales=scales_of(model)[:-1])
    with pytest.raises(ModelError, match="int8 scales are not those of this model"):
        EightBits(weights, plan, scales=[])


@pytest.mark.parametrize(
    ("capability", "instead"), [((8, 0), "use dtype = 'fp16'"), ((7, 5), "use device = 'cpu', or backend")]
)
def test_older_gpus_are_refused(capability: tuple[int, int], instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *which: "Model X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *which: capability)
    with pytest.raises(ConfigError, match=f"Model X has compute capability .*; fp8 needs 8.9 or newer; {instead}"):
        module._check_device("cuda", "fp8")
