"""Which device, backend and arithmetic to use here, and why. Nothing falls back in silence."""

from collections.abc import Sequence

import torch

from thresher.engine.backends.base import Backend
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.linear import LINEARS
from thresher.engine.backends.reference import DTYPES, Reference
from thresher.engine.probe import probe
from thresher.engine.weights import LayerSteps
from thresher.errors import ConfigError, ModelError

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "cpu", "reference")
STATIC = "int8-static"


def choose_backend(
    backend: str = "auto", dtype: str = "auto", *, device: str = "auto", steps: Sequence[LayerSteps] = ()
) -> tuple[Backend, str]:
    """A backend by name, with its arithmetic; `steps` are those of a quantized run."""
    _check("device", device, DEVICES)
    _check("backend", backend, BACKENDS)
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda is not available here; use device = 'cpu', and see: thresher doctor")
    if backend == "reference":
        _check("dtype", dtype, ("auto", *DTYPES), of="the reference backend")
        place = "cuda" if device == "cuda" else "cpu"
        return Reference(DTYPES["fp32" if dtype == "auto" else dtype], place), "the readable reference was asked for"
    if device == "cuda":
        raise ConfigError("there is no fast backend for CUDA yet; use device = 'cpu', or backend = 'reference'")
    _check("dtype", dtype, ("auto", *LINEARS, STATIC), of="the cpu backend")
    if dtype == STATIC and not steps:
        raise ConfigError("int8-static needs a quantized run; make one with: thresher quantize RUN --out RUN8")
    if dtype != "auto":
        return Cpu(dtype, steps), f"{dtype} was asked for"
    found, why = choose_dtype(quantized=bool(steps))
    return Cpu(found, steps), why


def choose_dtype(*, quantized: bool = False) -> tuple[str, str]:
    """The fastest arithmetic that does not change a model's quality unseen: int8 only where it was measured."""
    times = probe()
    measured = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
    best = min(("fp32", "bf16"), key=lambda name: times[name])
    why = f"the faster of fp32 and bf16 in a timed probe ({measured})"
    if not quantized:
        return best, why
    if times.get("int8", float("inf")) < times[best]:
        return STATIC, f"the run is quantized, and int8 is the fastest in a timed probe ({measured})"
    return best, f"the run is quantized, but int8 is not faster here: {why}"


def _check(name: str, value: str, known: Sequence[str], *, of: str = "") -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r} is not one of{' ' + of if of else ''}: {', '.join(known)}")
