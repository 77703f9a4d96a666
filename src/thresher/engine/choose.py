"""Which device, backend and arithmetic to use here, and why. Nothing falls back in silence."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from thresher.core.plan import PruningPlan
from thresher.engine.arithmetic import FP8, STATIC, cpu_dtype
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.linear import LINEARS, check_int8
from thresher.engine.backends.reference import DTYPES, Reference
from thresher.engine.checks import check_dtype_name
from thresher.engine.executor import Executor
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import LayerScales, Weights
from thresher.errors import ConfigError, ModelError

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "cpu", "cuda", "onnx", "reference")


@dataclass(frozen=True)
class Choice:
    """What is to compute, and why; `mode` and `steady` are the cuda backend's, `scales` are int8-static's and fp8's."""

    backend: str
    device: str
    dtype: str
    why: str
    mode: str = "auto"
    scales: tuple[LayerScales, ...] = ()
    steady: bool = False

    def build(self, weights: Weights, plan: PruningPlan) -> Executor:
        """The executor for a model; Triton is imported only for one that uses it."""
        if self.backend == "cuda":
            from thresher.engine.cuda.executor import CudaExecutor

            options: Any = {"dtype": self.dtype, "mode": self.mode, "steady": self.steady}
            return CudaExecutor(weights, plan, **options, scales=self.scales)
        if self.backend == "reference":
            return PackedExecutor(Reference(weights, plan, dtype=DTYPES[self.dtype], device=self.device))
        if self.backend == "onnx":
            from thresher.engine.graphs.executor import GraphExecutor

            return GraphExecutor(weights, plan, scales=self.scales if self.dtype == STATIC else ())
        return PackedExecutor(Cpu(weights, plan, dtype=self.dtype, scales=self.scales))


def choose(
    backend: str = "auto",
    dtype: str = "auto",
    *,
    device: str = "auto",
    mode: str = "auto",
    scales: Sequence[LayerScales] = (),
) -> Choice:
    """A backend by name, with its arithmetic; `scales` are those of a quantized run.

    What is asked for is used or refused. Left to choose, a GPU that the kernels can run on comes before the CPU; the
    reference runs on the CPU unless device is cuda. onnx is never chosen, only asked for: it is the faster one where
    texts come one by one, and the slower one where many come together.
    """
    dtype = check_dtype_name(dtype)
    _check("device", device, DEVICES)
    _check("backend", backend, BACKENDS)
    if {backend, device} in ({"cpu", "cuda"}, {"onnx", "cuda"}):
        raise ConfigError(f"backend {backend} does not run on device {device}; leave one of the two at auto")
    if "cuda" in (backend, device):
        place, found = "cuda", ""
    elif device == "cpu" or backend != "auto":
        place, found = "cpu", ""
    else:
        place, found = choose_place(dtype)
    if mode != "auto" and (place == "cpu" or backend == "reference"):
        used = backend if backend in ("reference", "onnx") else "cpu"
        raise ConfigError(
            f"mode = {mode!r} is for the cuda backend, and the backend here is {used}{_more(found)}; leave mode at auto"
        )
    if backend == "reference":
        return _reference(dtype, place)
    if backend == "onnx":
        return _onnx(dtype, scales)
    if place == "cuda":
        return _cuda(dtype, mode, scales, found=found)
    return _cpu(dtype, scales, found=found)


def choose_place(dtype: str = "auto") -> tuple[str, str]:
    """cpu or cuda where neither is asked for, and why."""
    if dtype.startswith("int8"):
        return "cpu", f"{dtype} is for the CPU"
    if dtype == FP8:
        return "cuda", ""
    problem = gpu_problem()
    return ("cpu", problem) if problem else ("cuda", f"on the GPU found here ({torch.cuda.get_device_name()})")


def choose_dtype(device: str = "cpu", *, quantized: bool = False) -> tuple[str, str]:
    """The fastest arithmetic that does not change a model's quality unseen, and why: int8 only where that was measured.

    It depends on the machine's instruction sets alone, and never on how busy it is.
    """
    if device == "cuda":
        why = "half precision with float32 scores and sums"
        return "fp16", f"{why}; the scales of a quantized run are for the CPU, and for fp8" if quantized else why
    return cpu_dtype(quantized=quantized)


def gpu_problem(dtype: str = "auto") -> str:
    """Why the kernels cannot run on a GPU here in this arithmetic; empty where they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if find_spec("triton") is None:
        return "the GPU kernels need Triton, which is not installed (pip install triton)"
    from thresher.engine.cuda.executor import OLDEST, OLDEST_FP8

    oldest, what = (OLDEST_FP8, "fp8 needs") if dtype == FP8 else (OLDEST, "the GPU kernels need")
    capability = torch.cuda.get_device_capability()
    if capability >= oldest:
        return ""
    has, needs = (".".join(map(str, version)) for version in (capability, oldest))
    return f"{torch.cuda.get_device_name()} has compute capability {has}, and {what} {needs} or newer"


def _reference(dtype: str, place: str) -> Choice:
    _check("dtype", dtype, ("auto", *DTYPES), of="the reference backend")
    if place == "cuda" and not torch.cuda.is_available():
        raise _unavailable(gpu_problem())
    dtype = "fp32" if dtype == "auto" else dtype
    return Choice("reference", place, dtype, "the readable reference was asked for")


def _cuda(dtype: str, mode: str, scales: Sequence[LayerScales], *, found: str) -> Choice:
    problem = gpu_problem()
    if problem:
        raise ModelError(f"fp8 is for GPUs: {problem}; use dtype = 'auto'") if dtype == FP8 else _unavailable(problem)
    if dtype == FP8 and (problem := gpu_problem(FP8)):
        raise ConfigError(f"{problem}; use dtype = 'fp16'")
    from thresher.engine.cuda.executor import CUDA_DTYPES, MODES

    _check("dtype", dtype, ("auto", *CUDA_DTYPES), of="the cuda backend")
    _check("mode", mode, MODES, of="the cuda backend")
    if dtype == "auto":
        dtype, why = choose_dtype("cuda", quantized=bool(scales))
    else:
        why = f"{dtype} was asked for"
    _check_scales(dtype, scales)
    return Choice("cuda", "cuda", dtype, why + _more(found), mode, tuple(scales) if dtype == FP8 else ())


def _onnx(dtype: str, scales: Sequence[LayerScales]) -> Choice:
    from thresher.engine.graphs.opened import check_packages

    check_packages(who="backend onnx")
    _check("dtype", dtype, ("auto", "fp32", STATIC), of="the onnx backend")
    if dtype == "auto":
        dtype = STATIC if scales and cpu_dtype(quantized=True)[0] == STATIC else "fp32"
    why = "onnxruntime was asked for, one text at a time" + ("; the run is quantized" if dtype == STATIC else "")
    _check_scales(dtype, scales)
    return Choice("onnx", "cpu", dtype, why, scales=tuple(scales))


def _check_scales(dtype: str, scales: Sequence[LayerScales]) -> None:
    if dtype in (STATIC, FP8) and not scales:
        raise ConfigError(f"{dtype} needs a quantized run; make one with: thresher quantize RUN --out RUN8")
    if dtype.startswith("int8"):
        check_int8()


def _cpu(dtype: str, scales: Sequence[LayerScales], *, found: str) -> Choice:
    _check("dtype", dtype, ("auto", *LINEARS, STATIC), of="the cpu backend")
    _check_scales(dtype, scales)
    if dtype == "auto":
        dtype, why = choose_dtype(quantized=bool(scales))
        why += _more(found)
    else:  # whoever asks for an arithmetic is told of a GPU that stays idle, and not that there is none
        why = f"{dtype} was asked for" + (_more(found) if torch.cuda.is_available() else "")
    return Choice("cpu", "cpu", dtype, why, scales=tuple(scales))


def _unavailable(problem: str) -> ModelError:
    return ModelError(f"device cuda is not available here: {problem}; use device = 'cpu', and see: thresher doctor")


def _more(found: str) -> str:
    return f"; {found}" if found else ""


def _check(name: str, value: str, known: Sequence[str], *, of: str = "") -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r} is not one of{' ' + of if of else ''}: {', '.join(known)}")
