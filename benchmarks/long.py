"""Long texts on a CPU: our engine dense and pruned, onnxruntime in int8 and Hugging Face, on made-up pairs of texts.

    python benchmarks/long.py --model FOLDER [--old CHECKOUT] [--threads 2] [--rounds 5]

Thresholds are set by the shares that layers keep, so the table is of speed and says nothing of quality. `--old`, a
checkout of another commit, adds a race of that commit's engine against this one, batch by batch in turn.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measuring import HERE, RESULTS, Row, made_by, shown

from thresher.config import PruneConfig
from thresher.core.cost import EncoderShape, relative_flops
from thresher.core.gates import falling_shares
from thresher.core.plan import PruningPlan
from thresher.engine.backends.cpu import Cpu
from thresher.engine.find_scales import find_scales
from thresher.engine.packed import PackedExecutor
from thresher.engine.scales import SCALES, write_scales
from thresher.engine.weights import read_weights
from thresher.evaluation.alone import alone, peak_memory
from thresher.evaluation.contenders import Spec, build
from thresher.evaluation.rivals import make_onnx, make_onnx_int8, padded
from thresher.evaluation.speed import race
from thresher.models.attach import encoder_shape, gates_of, prune_
from thresher.models.checkpoint import load_dense, save
from thresher.quiet import quiet_libraries
from thresher.records import append_record
from thresher.tasks.encode import Encoded

FILE = RESULTS / "long.jsonl"
MEAN, SPREAD, SHORTEST, LONGEST = 364, 80, 150, 512  # tokens
BATCH, TEXTS, CALIBRATION = 16, 64, 32
COSTS = (0.5, 0.3)  # relative FLOPs
WIDTH = 0.7  # of the fall in shares, in layers' number


def pairs(count: int, *, words: int, seed: int) -> list[Encoded]:
    """Random words in the form of a query and its document, between the special tokens of BERT's vocabulary."""
    random, found = np.random.default_rng(seed), []
    for length in random.normal(MEAN, SPREAD, count).clip(SHORTEST, LONGEST).round().astype(int).tolist():
        ids = random.integers(1996, words, length).tolist()
        ids[0], ids[20], ids[-1] = 101, 102, 102
        found.append(Encoded(ids, [0] * 21 + [1] * (length - 21), label=0))
    return found


def shares_for(cost: float, shape: EncoderShape, lengths: Sequence[int], *, width: float | None = None) -> list[float]:
    """Falling shares with these relative FLOPs, by bisection of where they fall; `width`: over so many layers."""
    tokens, low, high = torch.tensor(lengths), 0.0, 2.0 * shape.layers
    for _ in range(30):
        middle = (low + high) / 2
        shares = falling_shares(middle, width or WIDTH * shape.layers, layers=shape.layers)
        counts = (tokens[:, None] * torch.tensor(shares)).round().long().clamp(min=1)
        low, high = (middle, high) if float(relative_flops(shape, tokens, counts)) < cost else (low, middle)
    return shares


def pruned_run(model_folder: Path, cost: float, texts: Sequence[Encoded], out: Path) -> Path:
    """The folder of a run whose thresholds leave the shares that cost so much."""
    model, tokenizer = load_dense(model_folder, whole=True)
    shape, config = encoder_shape(model), PruneConfig(score="value")
    shares = shares_for(cost, shape, [len(text.input_ids) for text in texts])
    plan = PruningPlan(thresholds=(0.0,) * shape.layers, score=config.score)
    executor = PackedExecutor(Cpu(read_weights(model), plan))
    thresholds = executor.fit(shares, executor.pack(*inputs(texts)))
    prune_(model, config)
    gates_of(model).set_thresholds(thresholds)
    save(model, tokenizer, out)
    return out


def inputs(texts: Sequence[Encoded]) -> tuple[list[list[int]], list[list[int] | None]]:
    return [text.input_ids for text in texts], [text.token_type_ids for text in texts]


def specs_of(model: Path, calibration: Sequence[Encoded], work: Path, *, threads: int) -> list[Spec]:
    """Every row, with its files made."""
    stock, tokenizer = load_dense(model, whole=True)
    write_scales(work, find_scales(stock, list(zip(*inputs(calibration), strict=True))))
    fp32, int8 = work / "fp32.onnx", work / "int8.onnx"
    alone(make_onnx, model, fp32, padded(sorted(calibration[:2], key=lambda row: len(row.input_ids)), 0))
    alone(make_onnx_int8, fp32, int8)
    about: dict[str, Any] = {"pad_id": tokenizer.pad_token_id, "threads": threads, "means": "score"}
    found = [Spec("hugging face", "fp32", model, **about), Spec("onnxruntime, sorted", "int8", int8, **about)]
    runs = [("thresher dense", model)]
    runs += [("thresher pruned", pruned_run(model, cost, calibration, work / str(cost))) for cost in COSTS]
    for name, folder in runs:
        for dtype in ("fp32", "bf16", "int8-static"):
            # The dense model's scales for all: what they are worth does not depend on what is dropped.
            found.append(Spec(name, dtype, folder, scales=work / SCALES if dtype == "int8-static" else None, **about))
    return found


def against(checkout: Path, specs: Sequence[Spec], texts: Sequence[Encoded], rounds: int) -> list[Row]:
    """Seconds of the other commit and of this one, in processes of their own that take turns at every batch."""
    job = pickle.dumps((list(specs), [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]))
    places = [checkout, HERE.parent]
    workers = [_worker(place, job) for place in places]
    rows = []
    for number, spec in enumerate(specs):
        seconds: list[list[float]] = [[] for _ in places]
        for turn in range(rounds + 1):
            for batch in range(len(texts) // BATCH):
                for worker, found in zip(workers, seconds, strict=True):
                    took = _ask(worker, f"{number} {batch}")
                    found += [took] if turn else []  # the first is to warm up
        old, new = (median(found) for found in seconds)
        fastest = min(seconds[0]) / min(seconds[1])
        rows.append({"engine": spec.engine, "dtype": spec.dtype, "path": spec.path.name, "old_s": old, "new_s": new})
        rows[-1] |= {"speedup": old / new, "speedup_of_minima": fastest}
        print(rows[-1])
    for worker in workers:
        worker.terminate()
    return rows


def _worker(checkout: Path, job: bytes) -> "subprocess.Popen[str]":
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(job)
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", file.name]
    # The other commit has its own package; this script, which both run, asks of it only what both have.
    place = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    return subprocess.Popen(command, env=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(worker: "subprocess.Popen[str]", question: str) -> float:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(question + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def work_for(job: Path) -> None:
    """Answer numbers of a contender and a batch with the seconds it took."""
    specs, batches = pickle.loads(job.read_bytes())
    built: dict[int, Any] = {}
    for line in sys.stdin:
        number, batch = (int(word) for word in line.split())
        if number not in built:
            built[number] = build(specs[number])
        began = time.perf_counter()
        built[number].run(batches[batch])
        print(time.perf_counter() - began, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a reranker's folder, of BERT's family and vocabulary")
    parser.add_argument("--old", type=Path, help="a checkout of another commit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    quiet_libraries()
    if options.worker:
        return work_for(options.worker)
    if not options.model:
        parser.error("give --model FOLDER")
    torch.set_num_threads(options.threads)
    shape = encoder_shape(model := load_dense(options.model, whole=True)[0])
    words = model.config.vocab_size
    texts, calibration = pairs(options.texts, words=words, seed=0), pairs(CALIBRATION, words=words, seed=1)
    with tempfile.TemporaryDirectory() as work:
        specs = specs_of(options.model, calibration, Path(work), threads=options.threads)
        named = {"shape": f"{shape.layers} x {shape.width}", "model": shown(options.model), "batch_size": BATCH}
        ours = [spec for spec in specs if spec.engine.startswith("thresher")]
        old = against(options.old, ours, texts, options.rounds) if options.old else []
        contenders = [build(spec) for spec in specs]
        speeds = race(
            contenders,
            texts,
            None,
            shape=shape,
            batch_size=BATCH,
            rounds=options.rounds,
            latency_texts=10,
            means="score",
        )
        rows = [speed.to_dict() for speed in speeds]
        for row in rows:
            print(
                row["engine"],
                row["dtype"],
                f"{row['texts_per_s']:.2f} pairs/s at {row['relative_flops']:.2f}",
                flush=True,
            )
        for row, spec in zip(rows, specs, strict=True):
            row |= {"peak_mib": peak_memory(spec, texts, BATCH).peak_mib}
            print(row["engine"], row["dtype"], f"{row['peak_mib']:.0f} MiB", flush=True)
    lengths = [len(text.input_ids) for text in texts]
    about = {**named, "texts": len(texts), "tokens": sum(lengths) / len(lengths), "threads": options.threads}
    append_record(options.out, {**about, **made_by("long.py"), "rows": rows, "against_old": old})


if __name__ == "__main__":
    main()
