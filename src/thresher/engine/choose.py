"""Which backend and arithmetic to use here, and why. Nothing falls back in silence: `auto` chooses and says so."""

import torch

from thresher.engine.backends.base import Backend
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.linear import LINEARS
from thresher.engine.backends.reference import Reference
from thresher.errors import ConfigError
from thresher.hardware import native_bf16_on_cpu

BACKENDS = ("auto", "cpu", "reference")


def choose_backend(backend: str, dtype: str) -> tuple[Backend, str]:
    """A backend by name, with its arithmetic. auto means cpu, in bf16 where the processor computes it natively."""
    if backend not in BACKENDS:
        raise ConfigError(f"backend = {backend!r} is not one of: {', '.join(BACKENDS)}")
    if dtype not in ("auto", *LINEARS):
        raise ConfigError(f"dtype = {dtype!r} is not one of: auto, {', '.join(LINEARS)}")
    if backend == "reference":
        if dtype == "int8":
            raise ConfigError("the reference backend computes in fp32 or bf16; use backend = 'cpu' for int8")
        return Reference(torch.bfloat16 if dtype == "bf16" else torch.float32), "the readable reference was asked for"
    if dtype != "auto":
        return Cpu(dtype), f"{dtype} was asked for"
    if native_bf16_on_cpu():
        return Cpu("bf16"), "the processor computes bfloat16 natively"
    return Cpu("fp32"), "the processor has no native bfloat16"
