"""What this machine can do, read from the machine and never assumed."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of all cores, in a period of so many
CPU_FEATURES = {
    "avx2": "avx2",
    "avx512": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
}


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags as the kernel names them; empty where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    # x86 has "flags", ARM "Features".
    named = (line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features")) and ":" in line)
    return frozenset(next(named, []))


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use, which can be fewer than there are: a container's share of time counts, too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = CPU_QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError):  # no such file, or the word max in it
        return cores


def features() -> dict[str, bool]:
    """The instruction sets that decide which arithmetic is fast."""
    return {name: flag in cpu_flags() for name, flag in CPU_FEATURES.items()}


def native_bf16_on_cpu() -> bool:
    """Whether bfloat16 products run in hardware; without it they are up to 100 times slower than fp32."""
    found = features()
    return found["avx512_bf16"] or found["amx_bf16"]


def device_name(device: str) -> str:
    """A name a reader recognises: the GPU's, or the processor's with its cores."""
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{cpu_name()}, {os.cpu_count()} cores"


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Around the capture of a CUDA graph: what the library's products write to for themselves is then the graph's own.

    torch keeps such memory for each stream, and takes it back from all of them whenever somebody asks (torch.compile
    with CUDA graphs does). A graph captured on a stream that had it before may go on writing there: into others'
    tensors, or where nothing is any more. That is a likely cause of the crash of our replays beside torch.compile, and
    removed; that they no longer crash is not proven on a GPU yet (benchmarks/gpu/beside_compile.py would show it).
    """
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def choose_device() -> tuple[str, str]:
    """The device to use and why."""
    import torch

    if torch.cuda.is_available():
        return "cuda", f"CUDA is available ({torch.cuda.get_device_name()})"
    return "cpu", "no CUDA device is available"


def choose_precision(wanted: str, device: str) -> tuple[str, str]:
    """ "fp32" or "bf16" for training, and why. `wanted` is auto, fp32 or bf16."""
    import torch

    if wanted != "auto":
        return wanted, "asked for"
    if device.startswith("cuda"):
        if torch.cuda.is_bf16_supported():
            return "bf16", "the GPU computes bfloat16 natively"
        return "fp32", "the GPU has no bfloat16"
    if native_bf16_on_cpu():
        return "bf16", "the processor computes bfloat16 natively (AVX512_BF16 or AMX)"
    return "fp32", "the processor has no native bfloat16"


def summary() -> dict[str, Any]:
    """Everything `thresher doctor` reports about the machine."""
    import torch

    device, device_reason = choose_device()
    precision, precision_reason = choose_precision("auto", device)
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "features": features(),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "device": device,
        "device_reason": device_reason,
        "precision": precision,
        "precision_reason": precision_reason,
    }
