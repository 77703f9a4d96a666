"""Which arithmetic is fast here: measured once with a tiny product, and remembered on disk."""

import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from thresher.engine.backends.linear import LINEARS, check_int8
from thresher.engine.weights import Affine
from thresher.errors import ConfigError
from thresher.hardware import cpu_name
from thresher.records import write_json

ROWS, WIDTH = 256, 768
REPEATS = 5
DOUBT = 0.5  # a product that takes this much of its remembered time was not measured on an idle machine


def probe(*, cached: bool = True) -> dict[str, float]:
    """Milliseconds of one product in each arithmetic that works here, on the current number of threads.

    What is remembered is measured anew where the machine turns out to be far faster than it was then.
    """
    file, key = cache_file(), _key()
    known = _read(file)
    if cached and key in known and _milliseconds("fp32") > DOUBT * known[key]["fp32"]:
        return known[key]
    found = {dtype: _milliseconds(dtype) for dtype in LINEARS if _works(dtype)}
    try:
        write_json(file, {**known, key: found})
    except OSError:  # nothing can be written there: measured again next time
        pass
    return found


def cache_file() -> Path:
    """Where measurements are remembered; THRESHER_CACHE names another folder."""
    named = os.environ.get("THRESHER_CACHE")
    if named:
        return Path(named) / "probe.json"
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user may have no home
        caches = Path(tempfile.gettempdir())
    return caches / "thresher" / "probe.json"


def _key() -> str:
    """A measurement holds for one processor, one torch and one number of threads."""
    return f"{platform.machine()}, {cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _read(file: Path) -> dict[str, dict[str, float]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known = {str(key): {str(name): float(ms) for name, ms in value.items()} for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):  # none yet, or damaged: it is measured anew
        return {}
    return {key: times for key, times in known.items() if _is_whole(times)}


def _is_whole(times: dict[str, float]) -> bool:
    """What works everywhere is there, and every time is one."""
    return {"fp32", "bf16"} <= set(times) and all(math.isfinite(ms) and ms > 0 for ms in times.values())


def _works(dtype: str) -> bool:
    try:
        if dtype == "int8":
            check_int8()
    except ConfigError:
        return False
    return True


def _milliseconds(dtype: str) -> float:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, generator=generator)
    linear = LINEARS[dtype](Affine(weight=weight, bias=torch.zeros(WIDTH)))
    values = torch.randn(ROWS, WIDTH, generator=generator)
    values = values.bfloat16() if dtype == "bf16" else values
    with torch.inference_mode():
        linear(values)
        return min(_seconds(lambda: linear(values)) for _ in range(REPEATS)) * 1000


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
