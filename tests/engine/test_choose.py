"""What is chosen on which machine, and every refusal."""

import pytest
import torch

from thresher.engine import choose
from thresher.engine.choose import choose_backend, choose_dtype
from thresher.engine.weights import LayerSteps
from thresher.errors import ConfigError, ModelError

ONE = torch.ones(2)
STEPS = [LayerSteps(ONE, ONE, ONE, torch.tensor(1.0))]


def machine(monkeypatch: pytest.MonkeyPatch, **milliseconds: float) -> None:
    monkeypatch.setattr(choose, "probe", lambda: milliseconds)


@pytest.mark.parametrize(
    ("times", "quantized", "dtype", "why"),
    [
        ({"fp32": 3.0, "bf16": 1.0, "int8": 0.5}, False, "bf16", "the faster of fp32 and bf16 in a timed probe"),
        ({"fp32": 1.0, "bf16": 9.0, "int8": 0.5}, False, "fp32", "(fp32 1.00 ms, bf16 9.00 ms, int8 0.50 ms)"),
        ({"fp32": 3.0, "bf16": 1.0, "int8": 0.5}, True, "int8-static", "quantized, and int8 is the fastest"),
        ({"fp32": 3.0, "bf16": 1.0, "int8": 2.0}, True, "bf16", "quantized, but int8 is not faster here"),
        ({"fp32": 1.0, "bf16": 2.0}, True, "fp32", "quantized, but int8 is not faster here"),
    ],
)
def test_the_fastest_is_chosen_and_int8_only_for_a_quantized_run(
    monkeypatch: pytest.MonkeyPatch, times: dict[str, float], quantized: bool, dtype: str, why: str
) -> None:
    machine(monkeypatch, **times)
    found = choose_dtype(quantized=quantized)
    assert found[0] == dtype
    assert why in found[1]
    backend, reason = choose_backend(steps=STEPS if quantized else [])
    assert (backend.name, backend.dtype, reason) == ("cpu", dtype, found[1])


def test_what_is_asked_for_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert choose_backend(dtype="fp32")[1] == "fp32 was asked for"
    backend, why = choose_backend("reference", "fp64")
    assert (backend.name, backend.dtype, backend.device) == ("reference", "fp64", "cpu")
    assert why == "the readable reference was asked for"
    assert choose_backend("reference")[0].dtype == "fp32"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "device = 'tpu' is not one of: auto, cpu, cuda"),
        ({"backend": "fast"}, "backend = 'fast' is not one of: auto, cpu, reference"),
        ({"dtype": "fp8"}, "dtype = 'fp8' is not one of the cpu backend: auto, fp32, bf16, int8, int8-static"),
        ({"dtype": "fp16"}, "dtype = 'fp16' is not one of the cpu backend"),
        ({"backend": "reference", "dtype": "int8"}, "dtype = 'int8' is not one of the reference backend: auto, fp32"),
        ({"dtype": "int8-static"}, "int8-static needs a quantized run; make one with: thresher quantize RUN"),
    ],
)
def test_refusals_name_the_value_and_what_there_is(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_backend(**options)
    assert says in str(caught.value)


def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for backend in ("auto", "reference"):
        with pytest.raises(ModelError, match="device cuda is not available here; .* thresher doctor"):
            choose_backend(backend, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="no fast backend for CUDA yet"):
        choose_backend(device="cuda")
    assert choose_backend("reference", device="cuda")[0].device == "cuda"
