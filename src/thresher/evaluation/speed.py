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
from thresher.evaluation.of_tokens import in_order, to_compare
from thresher.evaluation.pace import chosen_batches
from thresher.evaluation.rivals import Row
from thresher.tasks.encode import Encoded
from thresher.tasks.task import Task
from thresher.tasks.truth import Truth

LATENCY_BLOCK = 10
AGREE = 0.1  # how far from the median a round's rate may lie, as a share of it, and still agree with it


@dataclass(frozen=True)
class Speed:
    """What was measured. Rates are medians over the rounds, latency is of single texts; None: does not apply.

    `settled`: at least two rounds, and more than half of them, lie within AGREE of the median; else the rate is not to
    be relied on, however many digits it has.
    `relative_flops` is in the paper's accounting on true lengths; `engine_relative_flops` is what packed execution
    computes over what it computes for the dense model. `useful_tflops` are those of the real tokens, per second, in the
    same accounting. `ms_p50` is of whole batches. `timed_texts` are those of a round: a slow contender's may be some of
    all. `agreement` is with the first contender, as in `evaluation.agreement`. The peaks are measured apart.
    """

    engine: str
    mode: str | None
    dtype: str
    batch: int
    ms_p50: float
    texts_per_s: float
    texts_per_s_low: float
    texts_per_s_high: float
    settled: bool
    latency_ms_p50: float
    latency_ms_p95: float
    quality: float | None
    agreement: float
    relative_flops: float
    engine_relative_flops: float | None
    useful_tflops: float
    attention: str | None = None
    timed_texts: int | None = None
    peak_mib: float | None = None
    peak_reserved_mib: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sequences_per_s": self.texts_per_s}  # its name in the records of benchmarks/gpu


@dataclass(frozen=True)
class _Pass:
    """One pass over all rows; results are in row order."""

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
    truth: Truth | None = None,
    dense_truth: Truth | None = None,
    means: str | None = None,
    parts: Sequence[float] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[Speed]:
    """Time all contenders in turn, `rounds` times after a warm-up, so that a slow spell of the machine hits them all.

    The first contender's predictions are what agreement is measured against, by what outputs mean. Without a task, rows
    have no labels and there is no quality; `truth` is what a task judges against, the rows' own labels if not given;
    `dense_truth` what it judges rows against that do not prune, where that is another.
    `parts`: of each contender, the share of its batches that is timed; all rows run in the warm-up.
    """
    times: list[list[_Round]] = [[] for _ in contenders]
    found: list[_Pass] = []
    for contender in contenders:
        found.append(_one_pass(contender, rows, batch_size))
        on_step()
    for _ in range(rounds):
        for i, contender in enumerate(contenders):
            times[i].append(_one_round(contender, rows, batch_size, part=1.0 if parts is None else parts[i]))
            on_step()
    latencies = _latencies(contenders, rows, latency_texts)
    judged: Any = np.array([row.label for row in rows]) if truth is None and task is not None else truth
    lengths, results = [len(row.input_ids) for row in rows], []
    compared = [to_compare(one.logits, lengths, means or "") for one in found]
    for i, contender in enumerate(contenders):
        rates = [one.texts / sum(one.seconds) for one in times[i]]
        cost = _cost(contender, found[i].kept, rows, shape)
        against = judged if contender.spec.prunes or dense_truth is None else dense_truth
        results.append(
            Speed(
                engine=contender.spec.engine,
                mode=contender.spec.mode,
                dtype=contender.spec.dtype,
                batch=batch_size,
                ms_p50=1000 * statistics.median(second for one in times[i] for second in one.whole),
                texts_per_s=statistics.median(rates),
                texts_per_s_low=min(rates),
                texts_per_s_high=max(rates),
                settled=settled(rates),
                latency_ms_p50=float(np.quantile(latencies[i], 0.5)),
                latency_ms_p95=float(np.quantile(latencies[i], 0.95)),
                quality=None if task is None else task.score(found[i].logits, against)["score"],
                agreement=agreement(compared[i], compared[0], means),
                relative_flops=cost.paper,
                engine_relative_flops=cost.packed,
                useful_tflops=cost.flops_per_text * statistics.median(rates) / 1e12,
                attention=contender.attention,
                timed_texts=times[i][0].texts,
            )
        )
    return results


def settled(rates: Sequence[float]) -> bool:
    """Whether the rounds of one row agree."""
    middle = statistics.median(rates)
    near = sum(abs(rate - middle) <= AGREE * middle for rate in rates)
    return near >= 2 and 2 * near > len(rates)


@dataclass(frozen=True)
class _Round:
    """The timed batches of one round: seconds of each, of the whole ones among them, and their texts."""

    seconds: list[float]
    whole: list[float]
    texts: int


def _one_round(contender: Contender, rows: Sequence[Encoded], batch_size: int, *, part: float) -> _Round:
    batches = contender.spec.batches(rows, batch_size)
    chosen = chosen_batches(len(batches), part)
    seconds = [_timed(contender, batches[i])[0] for i in chosen]
    full = len(rows) // batch_size or 1  # batches before the last, which may be smaller
    whole = [second for i, second in zip(chosen, seconds, strict=True) if i < full]
    return _Round(seconds, whole or seconds, sum(len(batches[i]) for i in chosen))


def seconds_of(contender: Contender, rows: Sequence[Row]) -> float:
    """How long one call takes."""
    return _timed(contender, rows)[0]


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
    parts = [contender.run(batch) for batch in contender.spec.batches(rows, batch_size)]
    order, lengths = contender.spec.order(rows), [len(row.input_ids) for row in rows]
    logits = in_order([logits for logits, _ in parts], order, lengths, contender.spec.means)
    kept = [kept for _, kept in parts if kept is not None]
    return _Pass(logits, np.concatenate(kept)[np.argsort(order)] if kept else None)


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
