"""Honest speed: the same texts in the same order through every contender, interleaved, against the strongest of them.

A contender takes a batch of token sequences and returns logits (batch, outputs). Tokenization is left out on all sides.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.core.cost import EncoderShape, relative_flops
from thresher.engine.engine import Engine
from thresher.tasks.encode import Encoded, collate
from thresher.tasks.task import Task

Run = Callable[[Sequence[Encoded]], Tensor]


@dataclass(frozen=True)
class Contender:
    """One row of the benchmark. `length_sorted` ones get their texts sorted by length, the best case for padding."""

    engine: str
    dtype: str
    run: Run
    length_sorted: bool = False
    kept: Callable[[], tuple[Tensor, Tensor]] | None = None


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
    relative_flops: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def hugging_face(model: Any, *, dtype: str, pad_id: int, length_sorted: bool) -> Contender:
    """The stock forward with its own attention (SDPA where the family has it), on padded batches."""

    def run(rows: Sequence[Encoded]) -> Tensor:
        batch = collate(rows, pad_id=pad_id)
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits: Tensor = model(**inputs).logits.float()
        return logits

    name = "hugging face, sorted" if length_sorted else "hugging face"
    return Contender(engine=name, dtype=dtype, run=run, length_sorted=length_sorted)


def thresher_engine(name: str, engine: Engine) -> Contender:
    """Our packed engine; remembers what it kept, to count FLOPs."""
    lengths: list[Tensor] = []
    kept: list[Tensor] = []

    def run(rows: Sequence[Encoded]) -> Tensor:
        types = [row.token_type_ids for row in rows if row.token_type_ids is not None]
        output = engine.packed.logits([row.input_ids for row in rows], types if len(types) == len(rows) else None)
        lengths.append(torch.tensor([len(row.input_ids) for row in rows]))
        kept.append(output.kept)
        return output.logits

    def seen() -> tuple[Tensor, Tensor]:
        return torch.cat(lengths), torch.cat(kept)

    return Contender(engine=name, dtype=engine.packed.backend.dtype, run=run, kept=seen)


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
    times: dict[int, list[float]] = {i: [] for i in range(len(contenders))}
    logits: dict[int, Tensor] = {}
    for turn in range(rounds + 1):
        for i, contender in enumerate(contenders):
            seconds, found = _one_pass(contender, rows, batch_size)
            if turn > 0:
                times[i].append(seconds)
            logits[i] = found
            on_step()
    labels = np.array([row.label for row in rows])
    results = []
    for i, contender in enumerate(contenders):
        rates = [len(rows) / seconds for seconds in times[i]]
        latencies = _latencies(contender, rows, latency_texts)
        results.append(
            Speed(
                engine=contender.engine,
                dtype=contender.dtype,
                texts_per_s=statistics.median(rates),
                texts_per_s_low=min(rates),
                texts_per_s_high=max(rates),
                latency_ms_p50=float(np.quantile(latencies, 0.5)),
                latency_ms_p95=float(np.quantile(latencies, 0.95)),
                quality=task.score(logits[i].numpy(), labels)["score"],
                agreement=_agreement(logits[i], logits[0]),
                relative_flops=float(relative_flops(shape, *contender.kept())) if contender.kept else None,
            )
        )
    return results


def _one_pass(contender: Contender, rows: Sequence[Encoded], batch_size: int) -> tuple[float, Tensor]:
    """Seconds for all rows in batches, and the logits in row order."""
    order = list(range(len(rows)))
    if contender.length_sorted:
        order.sort(key=lambda i: len(rows[i].input_ids))
    parts = []
    began = time.perf_counter()
    for start in range(0, len(order), batch_size):
        parts.append(contender.run([rows[i] for i in order[start : start + batch_size]]))
    seconds = time.perf_counter() - began
    return seconds, torch.cat(parts)[torch.tensor(order).argsort()]


def _latencies(contender: Contender, rows: Sequence[Encoded], count: int) -> list[float]:
    """Milliseconds of single texts, evenly spread over the rows."""
    chosen = [rows[len(rows) * i // count] for i in range(count)]
    for row in chosen[:3]:
        contender.run([row])
    found = []
    for row in chosen:
        began = time.perf_counter()
        contender.run([row])
        found.append(1000 * (time.perf_counter() - began))
    return found


def _agreement(logits: Tensor, dense: Tensor) -> float:
    """Share of equal decisions; for a regression, the correlation of the predictions."""
    if logits.shape[-1] == 1:
        return float(np.corrcoef(logits[:, 0].numpy(), dense[:, 0].numpy())[0, 1])
    return float((logits.argmax(dim=-1) == dense.argmax(dim=-1)).float().mean())
