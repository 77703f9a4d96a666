"""Long texts on a GPU, engines in turns: Hugging Face padded, torch without padding, and ours, dense and pruned.

    PYTHONPATH=src python benchmarks/gpu/long_texts.py --out FILE.jsonl [--shapes 12x384,12x768] [--tokens 300,500]

Shapes of rerankers with random weights; thresholds are set so that tokens are lost over three layers, as trained
rerankers lose them (experiments/reranker), at 0.30 relative FLOPs: speed alone is measured. Processes compile and fit
thresholds for all settings at the same time; then this one measures. Every turn is some batches, from token ids in
pinned memory to logits on the host; ours and Hugging Face's are all launched before the first result is waited for.
A setting that fails, or does not compile in time, is a record with its error, and the others go on; the same command
again measures the settings that this commit's records lack.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from book import Book
from rivals import hugging_face, padded
from setting import base_model, made_by, texts_of, wait

from thresher.core.cost import engine_relative_flops, relative_flops
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import DTYPES, Reference
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import Weights, read_weights
from thresher.evaluation.unpadded import UnpaddedDense

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from long import shares_for  # noqa: E402

SHAPES = {"12x384": (12, 384, 12), "12x768": (12, 768, 12), "tiny": (3, 64, 2)}  # layers, width, heads
SPREAD = {300: 60, 500: 12, 40: 8}  # of lengths around their mean; texts of 500 are long ones that were cut at 512
LONGEST, COST = 512, 0.30
SCORE = "value"
LAST = "thresher-dense"  # of a setting's rows
FITTED = 64  # texts
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One shape of model and mean length."""

    shape: str
    tokens: int
    device: str
    dtype: str
    batch: int
    batches: int

    def lengths(self, count: int, *, seed: int) -> list[int]:
        drawn = np.random.default_rng(seed).normal(self.tokens, SPREAD[self.tokens], count)
        return [int(length) for length in drawn.clip(8, LONGEST).round()]

    def texts(self) -> list[list[list[int]]]:
        """All batches."""
        texts = texts_of(self.lengths(self.batch * self.batches, seed=0))
        return [texts[start : start + self.batch] for start in range(0, len(texts), self.batch)]

    def model(self) -> Any:
        layers, width, heads = SHAPES[self.shape]
        return base_model(layers=layers, width=width, heads=heads)

    def fit(self, weights: Weights) -> list[float]:
        """Thresholds that leave falling shares on other texts of the same lengths."""
        lengths = self.lengths(min(FITTED, self.batch * self.batches), seed=7)
        shares = shares_for(COST, weights.shape, lengths)
        plan = PruningPlan(thresholds=(0.0,) * weights.shape.layers, score=SCORE)
        executor = PackedExecutor(Reference(weights, plan, device=self.device))
        found = executor.fit(shares, executor.pack(texts_of(lengths, seed=7)))
        return [0.0 if share == 1 else at for share, at in zip(shares, found, strict=True)]

    def engines(self, weights: Weights, thresholds: Sequence[float]) -> dict[str, CudaExecutor]:
        plans = {
            "thresher-dense": PruningPlan.dense(weights.shape.layers),
            "thresher-pruned": PruningPlan(thresholds=tuple(thresholds), score=SCORE),
        }
        return {name: CudaExecutor(weights, plan, dtype=self.dtype, device=self.device) for name, plan in plans.items()}


def ours(engine: CudaExecutor, batches: Sequence[list[list[int]]]) -> tuple[Work, torch.Tensor]:
    """All batches in flight, and what every layer keeps of every text. Each lane captures each batch's size first."""
    packed = [engine.pack(batch) for batch in batches]
    for each in packed:
        for begun in [engine.launch(each) for _ in range(engine.in_flight)]:
            engine.finish(begun)

    def work() -> list[Any]:
        return [engine.finish(begun) for begun in [engine.launch(each) for each in packed]]

    return work, torch.cat([found.kept for found in work()])


def unpadded(model: UnpaddedDense, batches: Sequence[list[list[int]]]) -> Work:
    packed = [model.pack(batch) for batch in batches]
    return lambda: [model.run(each) for each in packed]


def measure(case: Case, thresholds: Sequence[float], *, rounds: int) -> list[dict[str, Any]]:
    """One row for every engine."""
    batches, model = case.texts(), case.model()
    weights = read_weights(model)
    lengths = torch.tensor([len(text) for batch in batches for text in batch])
    works: dict[str, Work] = {}
    costs: dict[str, dict[str, float]] = {}
    for name, engine in case.engines(weights, thresholds).items():
        works[name], kept = ours(engine, batches)
        costs[name] = {
            "relative_flops": float(relative_flops(weights.shape, lengths, kept)),
            "engine_relative_flops": engine_relative_flops(weights.shape, lengths, kept, alone=engine.plan.alone),
        }
    works["torch-unpadded"] = unpadded(UnpaddedDense(weights, dtype=case.dtype, device=case.device), batches)
    inputs = [padded(batch, pinned=case.device != "cpu") for batch in batches]
    works["hf-sdpa"] = hugging_face(model.to(case.device, DTYPES[case.dtype]), inputs, case.device)
    seconds = in_turns(works, case.device, rounds=rounds)
    rows = []
    for name in reversed(works):
        times = sorted(seconds[name])
        rates = [len(lengths) / took for took in (times[len(times) // 2], times[-1], times[0])]
        rows.append(
            {
                "shape": case.shape,
                "tokens": case.tokens,
                "engine": name,
                "dtype": case.dtype,
                "sequences_per_s": rates[0],
                "sequences_per_s_low": rates[1],
                "sequences_per_s_high": rates[2],
                "relative_flops": 1.0,
                "engine_relative_flops": 1.0,
                **costs.get(name, {}),
                "mean_length": float(lengths.float().mean()),
                "longest": int(lengths.max()),
                "batch": case.batch,
                "batches": case.batches,
                "rounds": rounds,
            }
        )
    return rows


def in_turns(works: dict[str, Work], device: str, *, rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, after two that are not counted."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 2):
        for name, work in works.items():
            wait(device)
            began = time.perf_counter()
            work()
            wait(device)
            found[name] += [time.perf_counter() - began] if turn > 1 else []
    return found


def summary(rows: Sequence[dict[str, Any]]) -> str:
    rate = {row["engine"]: row["sequences_per_s"] for row in rows}
    pruned = next(row for row in rows if row["engine"] == "thresher-pruned")
    speedup, possible = rate["thresher-pruned"] / rate["thresher-dense"], 1 / pruned["engine_relative_flops"]
    rates = ", ".join(f"{name} {value:.0f}" for name, value in rate.items())
    over = {name: rate["thresher-pruned"] / rate[name] for name in ("hf-sdpa", "torch-unpadded")}
    return (
        f"{pruned['shape']}, {pruned['tokens']} tokens, {pruned['relative_flops']:.3f}: {rates} sequences/s; pruned "
        f"over dense {speedup:.2f}x of {possible:.2f}x ({speedup / possible:.0%}), over "
        + ", over ".join(f"{name} {value:.2f}x" for name, value in over.items())
    )


def prepare(case: Case) -> list[float]:
    """Thresholds; and everything is compiled, to where Triton keeps it. Its interpreter keeps nothing."""
    weights = read_weights(case.model())
    thresholds = case.fit(weights)
    if case.device != "cpu":
        for engine in case.engines(weights, thresholds).values():
            ours(engine, case.texts())
    return thresholds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON lines are added to this file")
    parser.add_argument("--shapes", default="12x384,12x768")
    parser.add_argument("--tokens", default="300,500")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=300, help="in all; half of it for compiling")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)  # thresholds are written to this file
    options, began = parser.parse_args(), time.time()
    cases = [
        Case(shape, int(tokens), options.device, options.dtype, options.batch, options.batches)
        for shape in options.shapes.split(",")
        for tokens in options.tokens.split(",")
    ]
    if options.prepare:
        options.prepare.write_text(json.dumps(prepare(cases[0])), encoding="utf-8")
        return
    if not options.out:
        parser.error("give --out FILE.jsonl")
    about = made_by("gpu/long_texts.py", device=options.device)
    book = Book(options.out, about, key=("shape", "tokens", "engine", "dtype"), seconds=options.seconds)
    cases = [case for case in cases if book.wants(**named(case), engine=LAST)]
    print(f"{book}; {len(cases)} settings to measure", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{case.shape}-{case.tokens}.json" for case in cases]
        workers = [begin(case, file) for case, file in zip(cases, files, strict=True)]
        for worker in workers:
            ended(worker, until=options.seconds / 2 - book.spent)
        print(f"compiled after {time.time() - began:.0f} s", flush=True)
        for case, file in zip(cases, files, strict=True):
            if not book.wants(**named(case), engine=LAST):
                continue
            with book.attempt(**named(case)):
                if not file.exists():
                    raise RuntimeError("its process did not end well or in time, see above")
                thresholds = [float(value) for value in json.loads(file.read_text(encoding="utf-8"))]
                rows = measure(case, thresholds, rounds=options.rounds)
                for row in rows:
                    book.add(**row, thresholds=[None if math.isinf(value) else value for value in thresholds])
                print(summary(rows), f"({time.time() - began:.0f} s)", flush=True)
    book.end()


def named(case: Case) -> dict[str, Any]:
    return {"shape": case.shape, "tokens": case.tokens, "dtype": case.dtype}


def ended(worker: "subprocess.Popen[bytes]", *, until: float) -> None:
    """After so many seconds, by force."""
    try:
        status = worker.wait(timeout=max(0.0, until))
    except subprocess.TimeoutExpired:
        worker.kill()
        status = worker.wait()
    if status:
        print(f"a process that compiles ended with {status}", flush=True)


def begin(case: Case, file: Path) -> "subprocess.Popen[bytes]":
    options = {name: getattr(case, name) for name in ("tokens", "device", "dtype", "batch", "batches")}
    words = [f"--{name}={value}" for name, value in options.items()]
    return subprocess.Popen([sys.executable, __file__, f"--shapes={case.shape}", f"--prepare={file}", *words])


if __name__ == "__main__":
    main()
