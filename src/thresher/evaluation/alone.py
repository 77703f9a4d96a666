"""Work in a fresh process of its own: conversions that print and leave traces, and the peak memory of one contender."""

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from thresher.evaluation.contenders import Spec, Tokens, build
from thresher.evaluation.rivals import Row
from thresher.processes import FreshProcesses

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Peak:
    """The most memory at any time, in MiB; on a GPU also with what torch holds and counts as free."""

    peak_mib: float
    peak_reserved_mib: float | None = None


def alone(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function of a module in a new process, which ends with it. What it raises is raised here."""
    with FreshProcesses(1, initializer=_silence) as pool:
        found: T = pool.submit(function, *args, **options).result()
    return found


def peak_memory(spec: Spec, rows: Sequence[Row], batch_size: int) -> Peak:
    """The most memory that a process with this contender alone holds while it runs the batches that need most.

    On a GPU: the most device memory that the contender allocates and reserves, its weights included, in this process.
    """
    # Plain tokens: unpickling the rows of a task would load torch.
    plain = [Tokens(row.input_ids, row.token_type_ids) for row in rows]
    batches = heaviest(spec, plain, batch_size)
    return Peak(alone(_peak_of, spec, batches)) if spec.device == "cpu" else _peak_on_device(spec, batches)


def heaviest(spec: Spec, rows: Sequence[Tokens], batch_size: int) -> list[list[Tokens]]:
    """The two batches with the longest texts and the two with most tokens: padded and packed peaks lie among them."""
    batches = spec.batches(rows, batch_size)
    longest = sorted(batches, key=lambda batch: -max(len(row.input_ids) for row in batch))
    fullest = sorted(batches, key=lambda batch: -sum(len(row.input_ids) for row in batch))
    chosen = longest[:2] + fullest[:2]
    return [batch for i, batch in enumerate(chosen) if batch not in chosen[:i]]


def _peak_of(spec: Spec, batches: Sequence[Sequence[Tokens]]) -> float:
    run = build(spec).run
    _forget_loading()
    for batch in batches:
        run(batch)
    return _peak()


def _peak_on_device(spec: Spec, batches: Sequence[Sequence[Tokens]]) -> Peak:
    """Of the contender loaded anew: the allocator sees a CUDA graph's memory when it is captured, not in a replay.

    After the capture a graph's blocks count as free, though nothing else can have them: only what is reserved shows
    several graphs together. After a race, so that everything is compiled and tuned, which needs memory of its own.
    """
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # what other rows left behind would be taken without being reserved anew
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    run = build(spec).run
    torch.cuda.empty_cache()  # loading's
    torch.cuda.reset_peak_memory_stats()
    for batch in batches:
        run(batch)
    return Peak(
        (torch.cuda.max_memory_allocated() - allocated) / 2**20,
        (torch.cuda.max_memory_reserved() - reserved) / 2**20,
    )


def _forget_loading() -> None:
    """Hand back what loading left free and start the peak anew; outside Linux the peak includes loading."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> float:
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit / 2**20


def _silence() -> None:
    """The converters draw bars and print advice, and standard output belongs to the result."""
    os.environ["CI"] = "true"  # OpenVINO's and NNCF's converters report their use over the network elsewhere
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
