"""What is chosen on which machine, and every refusal."""

import random
import time
from typing import Any

import pytest
import torch

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.models.families import tiny_model
from thresher.engine import arithmetic
from thresher.engine import choose as module
from thresher.engine.choose import Choice, choose, choose_dtype, gpu_problem
from thresher.engine.engine import Engine
from thresher.engine.weights import LayerScales
from thresher.errors import ConfigError, ModelError

ONE = torch.ones(2)
SCALES = [LayerScales(ONE, ONE, ONE, torch.tensor(1.0))]
NO_GPU = "torch sees no CUDA device"
HALF = "half precision with float32 scores and sums"
FOUND = "on the GPU found here (Model X)"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def machine(monkeypatch: pytest.MonkeyPatch, *sets: str) -> None:
    """With these instruction sets."""
    monkeypatch.setattr(arithmetic, "features", lambda: dict.fromkeys(sets, True))
    monkeypatch.setattr(arithmetic, "int8_works", lambda: True)


def gpu(monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int] = (9, 0), triton: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *which: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *which: "Model X")
    monkeypatch.setattr(module, "find_spec", lambda name: object() if triton else None)


BOTH = ("avx2", "avx512", "avx512_bf16", "avx512_vnni")


@pytest.mark.parametrize(
    ("sets", "quantized", "dtype", "why"),
    [
        (BOTH, False, "bf16", "measured with AVX512_BF16 and AVX512_VNNI: bf16 is 1.8x as fast as fp32"),
        (
            BOTH,
            True,
            "int8-static",
            "the run is quantized, and by the processor's instruction sets int8 is the fastest",
        ),
        ((*BOTH, "amx_bf16", "amx_int8"), False, "bf16", "measured with AVX512_BF16"),
        (("amx_bf16", "amx_int8"), True, "int8-static", "AMX computes bf16 and int8 in hardware"),
        (("avx2", "avx512", "avx512_bf16"), True, "bf16", "quantized, but int8 is not known to be faster here"),
        (("avx2", "avx512", "avx512_vnni"), False, "fp32", "no bf16 in hardware"),
        (("avx2", "avx512", "avx512_vnni"), True, "int8-static", "int8 by AVX512_VNNI"),
        (("avx2", "avx_vnni"), True, "int8-static", "int8 by AVX_VNNI"),
        (("avx2",), False, "fp32", "neither bf16 nor int8 in hardware that was measured"),
        (("avx2",), True, "fp32", "quantized, but int8 is not known to be faster here"),
        ((), False, "fp32", "neither bf16 nor int8"),
    ],
)
def test_instruction_sets_decide_and_int8_is_for_a_quantized_run(
    monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], quantized: bool, dtype: str, why: str
) -> None:
    machine(monkeypatch, *sets)
    best, because = choose_dtype(quantized=quantized)
    assert best == dtype
    assert why in because
    for device, reason in (("cpu", because), ("auto", f"{because}; {NO_GPU}")):
        found = choose(device=device, scales=SCALES if quantized else [])
        assert (found.backend, found.dtype, found.why) == ("cpu", dtype, reason)


def test_int8_that_does_not_work_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, *BOTH)
    monkeypatch.setattr(arithmetic, "int8_works", lambda: False)
    assert choose_dtype(quantized=True)[0] == "bf16"


def test_twenty_loads_on_a_busy_machine_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock decides: here every look at one gives any time at all, and a measurement would be an error."""
    noise = random.Random(0)
    for name in ("perf_counter", "thread_time", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, lambda: noise.uniform(0, 1e6))

    def refuse(*given: object) -> None:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr("thresher.engine.probe._milliseconds", refuse)
    model, loaded = tiny_model("bert"), set()
    for _ in range(20):
        about = Engine.from_model(model, tiny_tokenizer(), device="cpu").describe()
        loaded.add((about["dtype"], about["why"], about["threads"]))
    assert len(loaded) == 1


def test_threads_are_pinned_and_said() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            engine = Engine.from_model(
                tiny_model("bert"), tiny_tokenizer(), device="cpu", dtype="fp32", threads=threads
            )
            assert engine.describe()["threads"] == torch.get_num_threads() == threads
        with pytest.raises(ConfigError, match="threads = 0 is below 1"):
            Engine.from_model(tiny_model("bert"), tiny_tokenizer(), device="cpu", threads=0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("times", "chosen", "says"),
    [
        ({"fp32": 2.0, "bf16": 1.0, "int8": 0.5}, "fp32", "bf16 took 1.00 ms here and fp32 2.00 ms"),
        ({"fp32": 1.0, "bf16": 1.1}, "bf16", None),
        ({"fp32": 1.0, "bf16": 9.0}, "int8-static", None),
    ],
)
def test_a_measurement_advises(times: dict[str, float], chosen: str, says: str | None) -> None:
    found = arithmetic.advice(times, chosen)
    assert (found is None) == (says is None) and (says or "") in (found or "")


def test_what_is_asked_for_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert choose(dtype="fp32").why == "fp32 was asked for"
    found = choose("reference", "fp64")
    assert (found.backend, found.dtype, found.device) == ("reference", "fp64", "cpu")
    assert found.why == "the readable reference was asked for"
    assert choose("reference").dtype == "fp32"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "device = 'tpu' is not one of: auto, cpu, cuda"),
        ({"dtype": None}, "dtype = None is of type NoneType; give a name such as 'auto' or 'fp32'"),
        ({"backend": "fast"}, "backend = 'fast' is not one of: auto, cpu, cuda, onnx, reference"),
        (
            {"dtype": "fp8", "device": "cpu"},
            "dtype = 'fp8' is not one of the cpu backend: auto, fp32, bf16, int8, int8-static",
        ),
        ({"dtype": "fp16"}, "dtype = 'fp16' is not one of the cpu backend"),
        ({"backend": "reference", "dtype": "int8"}, "dtype = 'int8' is not one of the reference backend: auto, fp32"),
        ({"dtype": "int8-static"}, "int8-static needs a quantized run; make one with: thresher quantize RUN"),
        ({"backend": "cuda", "device": "cpu"}, "backend cuda does not run on device cpu; leave one of the two at auto"),
        ({"backend": "cpu", "device": "cuda"}, "backend cpu does not run on device cuda; leave one of the two at auto"),
        ({"mode": "graph"}, f"mode = 'graph' is for the cuda backend, and the backend here is cpu; {NO_GPU}; leave"),
        ({"mode": "sync", "backend": "cpu"}, "mode = 'sync' is for the cuda backend, and the backend here is cpu;"),
        ({"mode": "sync", "backend": "reference"}, "and the backend here is reference; leave mode at auto"),
    ],
)
def test_refusals_name_the_value_and_what_there_is(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(**options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "chosen", "why"),
    [
        ({}, ("fp16", "auto"), f"{HALF}; {FOUND}"),
        ({"device": "cuda"}, ("fp16", "auto"), HALF),
        ({"backend": "cuda", "mode": "graph"}, ("fp16", "graph"), HALF),
        ({"mode": "sync", "dtype": "bf16"}, ("bf16", "sync"), f"bf16 was asked for; {FOUND}"),
        ({"device": "cuda", "dtype": "fp32"}, ("fp32", "auto"), "fp32 was asked for"),
        (
            {"device": "cuda", "scales": SCALES},
            ("fp16", "auto"),
            f"{HALF}; the scales of a quantized run are for the CPU, and for fp8",
        ),
        ({"device": "cuda", "dtype": "fp8", "scales": SCALES}, ("fp8", "auto"), "fp8 was asked for"),
        ({"dtype": "fp8", "scales": SCALES}, ("fp8", "auto"), "fp8 was asked for"),
    ],
)
def test_a_gpu_is_used_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], chosen: tuple[str, str], why: str
) -> None:
    machine(monkeypatch)
    gpu(monkeypatch)
    assert gpu_problem() == ""
    dtype, mode = chosen
    scales = tuple(SCALES) if dtype == "fp8" else ()
    assert choose(**options) == Choice("cuda", "cuda", dtype, why, mode, scales)


def test_the_cpu_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by device, by backend, or by an arithmetic that only the CPU has."""
    machine(monkeypatch, "avx2")
    gpu(monkeypatch)
    assert "GPU" not in choose(device="cpu").why
    for options in ({"device": "cpu"}, {"backend": "cpu"}, {"backend": "reference"}):
        assert choose(**options).device == "cpu"
    assert choose("reference", device="cuda").device == "cuda"
    monkeypatch.setattr("thresher.engine.choose.check_int8", lambda: None)
    found = choose(dtype="int8-static", scales=SCALES)
    assert (found.backend, found.why) == ("cpu", "int8-static was asked for; int8-static is for the CPU")


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"capability": (7, 5)}, "Model X has compute capability 7.5, and the GPU kernels need 8.0 or newer"),
    ({"triton": False}, "the GPU kernels need Triton, which is not installed (pip install triton)"),
]


@pytest.mark.parametrize(("settings", "problem"), UNFIT)
def test_a_gpu_that_the_kernels_cannot_use(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], problem: str
) -> None:
    """Left to choose, the CPU, and the reason is said; asked for, an error."""
    machine(monkeypatch, "avx2")
    gpu(monkeypatch, **settings)
    for options in ({}, {"dtype": "fp32"}):
        found = choose(**options)
        assert found.backend == "cpu" and found.why.endswith(problem)
    for options in ({"device": "cuda"}, {"backend": "cuda"}):
        with pytest.raises(ModelError) as caught:
            choose(**options)
        assert problem in str(caught.value)
    assert choose("reference", device="cuda").device == "cuda"


def test_asking_for_a_gpu_where_there_is_none() -> None:
    for options in ({"device": "cuda"}, {"backend": "cuda"}, {"backend": "reference", "device": "cuda"}):
        with pytest.raises(ModelError, match=f"device cuda is not available here: {NO_GPU}; .* thresher doctor"):
            choose(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int8"}, "dtype = 'int8' is not one of the cuda backend: auto, fp16, bf16, fp32, fp8"),
        ({"dtype": "fp8"}, "fp8 needs a quantized run; make one with: thresher quantize RUN --out RUN8"),
        ({"dtype": "int8-static", "scales": SCALES}, "dtype = 'int8-static' is not one of the cuda backend: auto"),
        ({"mode": "fast"}, "mode = 'fast' is not one of the cuda backend: auto, sync, graph"),
    ],
)
def test_refusals_on_a_gpu(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str) -> None:
    gpu(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        choose(device="cuda", **options)
    assert says in str(caught.value)


def test_fp8_is_for_gpus_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nothing takes its place in silence."""
    for options in ({}, {"device": "cuda"}):
        with pytest.raises(ModelError, match=f"fp8 is for GPUs: {NO_GPU}; use dtype = 'auto'"):
            choose(dtype="fp8", scales=SCALES, **options)
    for older in ((8, 0), (8, 6)):
        gpu(monkeypatch, capability=older)
        with pytest.raises(
            ConfigError, match=r"compute capability 8\.., and fp8 needs 8.9 or newer; use dtype = 'fp16'"
        ):
            choose(dtype="fp8", scales=SCALES)
        assert choose(scales=SCALES).dtype == "fp16"
    gpu(monkeypatch, capability=(8, 9))
    assert gpu_problem("fp8") == "" and choose(dtype="fp8", scales=SCALES).dtype == "fp8"
