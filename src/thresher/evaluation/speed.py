"""Honest speed: the same texts in the same order through every contender, interleaved, against the strongest of them.

A contender takes a batch of token sequences and returns logits. Tokenization is left out on all sides; padding and
packing are timed, and on a GPU the copies there and back.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thresher.core.cost import (
    EncoderShape,
    dense_macs,
    engine_macs,
    engine_relative_flops,
    flops,
    relative_flops,
    tokens_seen,
)
from thresher.evaluation.agreement import agreement
from thresher.evaluation.contenders import Contender, Result
from thresher.evaluation.rivals import Row
from thresher.tasks.encode import Encoded
from thresher.tasks.task import Task

LATENCY_BLOCK = 10


@dataclass(frozen=True)
class Speed:
    """What was measured. Rates are medians over the rounds, latency is of single texts; None: does not apply.

    `relative_flops` is in the paper's accounting on true lengths; `engine_relative_flops` is what packed execution
    computes over what it computes for the dense model. `useful_tflops` are those of the real tokens, per second, in the
    same accounting. `ms_p50` is of whole batches. The peaks are measured apart.
    """

    engine: str
    mode: str | None
    dtype: str
    batch: int
    ms_p50: float
    texts_per_s: float
    texts_per_s_low: float
    texts_per_s_high: float
    latency_ms_p50: float
    latency_ms_p95: float
    quality: float | None
    agreement: float
    relative_flops: float
    engine_relative_flops: float | None
    useful_tflops: float
    attention: str | None = None
    peak_mib: float | None = None
    peak_reserved_mib: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sequences_per_s": self.texts_per_s}  # its name in the records of benchmarks/gpu


@dataclass(frozen=True)
class _Pass:
    """One pass over all rows. seconds: of each batch; results are in row order."""

    seconds: list[float]
    logits: NDArray[np.float32]
    kept: NDArray[np.int64] | None


def race(
    contenders: Sequence[Contender],
    rows: Sequence[Encoded],
    task: Task | None,
    *,
    shape: EncoderShape,
    batch_size: int,
    rounds: int,
    latency_texts: int,
    on_step: Callable[[], None] = lambda: None,
) -> list[Speed]:
    """Time all contenders in turn, `rounds` times after a warm-up, so that a slow spell of the machine hits them all.

    The first contender's predictions are what agreement is measured against. Without a task, rows have no labels and
    there is no quality.
    """
    times: list[list[list[float]]] = [[] for _ in contenders]  # of each contender's rounds: of each batch
    found: list[_Pass] = []
    for turn in range(rounds + 1):
        found = []
        for i, contender in enumerate(contenders):
            found.append(_one_pass(contender, rows, batch_size))
            if turn > 0:
                times[i].append(found[i].seconds)
            on_step()
    latencies = _latencies(contenders, rows, latency_texts)
    labels = np.array([row.label for row in rows])
    results = []
    for i, contender in enumerate(contenders):
        rates = [len(rows) / sum(seconds) for seconds in times[i]]
        whole = len(rows) // batch_size or 1  # batches before the last, which may be smaller
        cost = _cost(contender, found[i].kept, rows, shape)
        results.append(
            Speed(
                engine=contender.spec.engine,
                mode=contender.spec.mode,
                dtype=contender.spec.dtype,
                batch=batch_size,
                ms_p50=1000 * statistics.median(second for seconds in times[i] for second in seconds[:whole]),
                texts_per_s=statistics.median(rates),
                texts_per_s_low=min(rates),
                texts_per_s_high=max(rates),
                latency_ms_p50=float(np.quantile(latencies[i], 0.5)),
                latency_ms_p95=float(np.quantile(latencies[i], 0.95)),
                quality=None if task is None else task.score(found[i].logits, labels)["score"],
                agreement=agreement(found[i].logits, found[0].logits),
                relative_flops=cost.paper,
                engine_relative_flops=cost.packed,
                useful_tflops=cost.flops_per_text * statistics.median(rates) / 1e12,
                attention=contender.attention,
            )
        )
    return results


def _timed(contender: Contender, rows: Sequence[Row]) -> tuple[float, Result]:
    """Seconds of one call, from tokens on the host to logits on the host, with nothing left for the GPU to do."""
    wait = torch.cuda.synchronize if contender.spec.device != "cpu" else _nothing
    wait()
    began = time.perf_counter()
    found = contender.run(rows)
    wait()
    return time.perf_counter() - began, found


def _nothing() -> None:
    """The CPU has done its work when a call returns."""


def _one_pass(contender: Contender, rows: Sequence[Encoded], batch_size: int) -> _Pass:
    timed = [_timed(contender, batch) for batch in contender.spec.batches(rows, batch_size)]
    parts = [found for _, found in timed]
    back = np.argsort(contender.spec.order(rows))
    logits = np.concatenate([logits for logits, _ in parts])[back]
    kept = [kept for _, kept in parts if kept is not None]
    return _Pass([seconds for seconds, _ in timed], logits, np.concatenate(kept)[back] if kept else None)


def _latencies(contenders: Sequence[Contender], rows: Sequence[Encoded], count: int) -> list[list[float]]:
    """Milliseconds of single texts, evenly spread over the rows, in blocks of ten per contender.

    A block runs once untimed: the threads of the contender before may still spin, OpenVINO compiles for every length it
    has not met, and CUDA graphs are captured.
    """
    texts = [rows[len(rows) * number // count] for number in range(count)]
    found: list[list[float]] = [[] for _ in contenders]
    for start in range(0, count, LATENCY_BLOCK):
        block = texts[start : start + LATENCY_BLOCK]
        for i, contender in enumerate(contenders):
            for row in block:
                contender.run([row])
            for row in block:
                found[i].append(1000 * _timed(contender, [row])[0])
    return found


@dataclass(frozen=True)
class _Cost:
    """Relative FLOPs in the paper's accounting, and in the engine's where it is ours; what is computed for a text."""

    paper: float
    packed: float | None
    flops_per_text: float


def _cost(contender: Contender, kept: NDArray[np.int64] | None, rows: Sequence[Encoded], shape: EncoderShape) -> _Cost:
    """Rivals are dense."""
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    if kept is None:
        return _Cost(1.0, None, float(flops(dense_macs(shape, lengths)).double().mean()))
    counts = torch.from_numpy(kept).clone()
    if not contender.counts_last:
        # The engine computes one token of the last layer, whatever its threshold; the paper's FFN is then counted for
        # every token the layer sees, never for fewer than a threshold would keep.
        counts[:, -1] = tokens_seen(lengths, counts)[:, -1]
    return _Cost(
        float(relative_flops(shape, lengths, counts)),
        engine_relative_flops(shape, lengths, counts, alone=contender.alone),
        float(flops(engine_macs(shape, lengths, counts, alone=contender.alone)).double().mean()),
    )
