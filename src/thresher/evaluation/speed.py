"""Honest speed: the same texts in the same order through every contender, interleaved, against the strongest of them.

A contender takes a batch of token sequences and returns logits. Tokenization is left out on all sides; padding and
packing are timed.
"""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.core.cost import EncoderShape, engine_relative_flops
from thresher.engine.engine import Engine
from thresher.tasks.encode import Encoded, collate
from thresher.tasks.task import Task

Run = Callable[[Sequence[Encoded]], tuple[Tensor, Tensor | None]]  # logits (batch, outputs), kept (batch, layers)


@dataclass(frozen=True)
class Contender:
    """One row of the benchmark. `length_sorted` ones get their texts sorted by length, the best case for padding."""

    engine: str
    dtype: str
    run: Run
    length_sorted: bool = False


@dataclass(frozen=True)
class Speed:
    """What was measured. Rates are medians over the rounds, latency is of single texts; None: does not apply."""

    engine: str
    dtype: str
    texts_per_s: float
    texts_per_s_low: float
    texts_per_s_high: float
    latency_ms_p50: float
    latency_ms_p95: float
    quality: float
    agreement: float
    engine_relative_flops: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def hugging_face(model: Any, *, dtype: str, pad_id: int, length_sorted: bool) -> Contender:
    """The stock forward with its own attention (SDPA where the family has it), on padded batches.

    bf16 means a model converted to bf16, which is faster than autocast.
    """
    model = copy.deepcopy(model).to(torch.bfloat16) if dtype == "bf16" else model

    def run(rows: Sequence[Encoded]) -> tuple[Tensor, None]:
        batch = collate(rows, pad_id=pad_id)
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return model(**inputs).logits.float(), None

    name = "hugging face, sorted" if length_sorted else "hugging face"
    return Contender(engine=name, dtype=dtype, run=run, length_sorted=length_sorted)


def thresher_engine(name: str, engine: Engine) -> Contender:
    """Our packed engine."""

    def run(rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        output = engine.packed.logits([row.input_ids for row in rows], [row.token_type_ids for row in rows])
        return output.logits, output.kept

    return Contender(engine=name, dtype=engine.packed.backend.dtype, run=run)


@torch.inference_mode()
def race(
    contenders: Sequence[Contender],
    rows: Sequence[Encoded],
    task: Task,
    *,
    shape: EncoderShape,
    batch_size: int,
    rounds: int,
    latency_texts: int,
    on_step: Callable[[], None] = lambda: None,
) -> list[Speed]:
    """Time all contenders in turn, `rounds` times after a warm-up, so that a slow spell of the machine hits them all.

    The first contender's predictions are what agreement is measured against.
    """
    times: list[list[float]] = [[] for _ in contenders]
    found: list[tuple[Tensor, Tensor | None]] = []
    for turn in range(rounds + 1):
        found = []
        for i, contender in enumerate(contenders):
            seconds, logits, kept = _one_pass(contender, rows, batch_size)
            if turn > 0:
                times[i].append(seconds)
            found.append((logits, kept))
            on_step()
    latencies = _latencies(contenders, rows, latency_texts)
    labels = np.array([row.label for row in rows])
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    results = []
    for i, contender in enumerate(contenders):
        rates = [len(rows) / seconds for seconds in times[i]]
        logits, kept = found[i]
        results.append(
            Speed(
                engine=contender.engine,
                dtype=contender.dtype,
                texts_per_s=statistics.median(rates),
                texts_per_s_low=min(rates),
                texts_per_s_high=max(rates),
                latency_ms_p50=float(np.quantile(latencies[i], 0.5)),
                latency_ms_p95=float(np.quantile(latencies[i], 0.95)),
                quality=task.score(logits.numpy(), labels)["score"],
                agreement=_agreement(logits, found[0][0]),
                engine_relative_flops=None if kept is None else engine_relative_flops(shape, lengths, kept),
            )
        )
    return results


def _one_pass(contender: Contender, rows: Sequence[Encoded], batch_size: int) -> tuple[float, Tensor, Tensor | None]:
    """Seconds for all rows in batches, and logits and kept counts in row order."""
    order = list(range(len(rows)))
    if contender.length_sorted:
        order.sort(key=lambda i: len(rows[i].input_ids))
    parts = []
    began = time.perf_counter()
    for start in range(0, len(order), batch_size):
        parts.append(contender.run([rows[i] for i in order[start : start + batch_size]]))
    seconds = time.perf_counter() - began
    back = torch.tensor(order).argsort()
    kept = [part for _, part in parts if part is not None]
    return seconds, torch.cat([logits for logits, _ in parts])[back], torch.cat(kept)[back] if kept else None


def _latencies(contenders: Sequence[Contender], rows: Sequence[Encoded], count: int) -> list[list[float]]:
    """Milliseconds of single texts, evenly spread over the rows, contenders in turn; three texts warm up."""
    found: list[list[float]] = [[] for _ in contenders]
    for number in range(-3, count):
        row = rows[len(rows) * max(0, number) // count]
        for i, contender in enumerate(contenders):
            began = time.perf_counter()
            contender.run([row])
            if number >= 0:
                found[i].append(1000 * (time.perf_counter() - began))
    return found


def _agreement(logits: Tensor, dense: Tensor) -> float:
    """Share of equal decisions; for a regression, the correlation of the predictions."""
    if logits.shape[-1] == 1:
        return float(np.corrcoef(logits[:, 0].numpy(), dense[:, 0].numpy())[0, 1])
    return float((logits.argmax(dim=-1) == dense.argmax(dim=-1)).float().mean())
