"""Long texts on a CPU: our engine dense and pruned, onnxruntime in int8 and Hugging Face, on made-up pairs of texts.

    mkdir COMMIT && git archive COMMIT src | tar x -C COMMIT
    python benchmarks/long.py PART[,PART...] --model FOLDER [--old COMMIT] [--threads 2] [--rounds 3]
    python benchmarks/long_page.py

Parts, each a record of its own, so that each can be measured while nothing else runs: `race`, all engines in turns;
`queries`, the pruned run with scores from fewer queries; `memory`, the peak of each in a process of its own; `old`,
another commit's engine (its folder, named like it) against this one, batch by batch in turn. Thresholds are set by the
shares that layers keep, so the tables are of speed and say nothing of quality.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
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
from thresher.models.checkpoint import load, load_dense, save
from thresher.quiet import quiet_libraries
from thresher.records import append_record
from thresher.tasks.encode import Encoded

FILE = RESULTS / "long.jsonl"
MEAN, SPREAD, SHORTEST, LONGEST = 364, 80, 150, 512  # tokens
BATCH, TEXTS, CALIBRATION, LATENCY = 16, 64, 32, 6
COSTS = (0.5, 0.3)  # relative FLOPs
# Over how many of 12 layers the shares fall, and the least of a layer: as the rerankers of experiments/reranker were
# trained to, on pairs of 380 tokens.
FALL, LEAST = 3.3, 0.06
DTYPES = ("fp32", "bf16", "int8-static")
QUERIES = (1, 4, 8, 0)  # that scores are counted from: every so many-th, or the first alone
PARTS = ("race", "queries", "memory", "old")
SIDE = HERE / "long_side.py"


def pairs(count: int, *, words: int, seed: int) -> list[Encoded]:
    """Random words in the form of a query and its document, between the special tokens of BERT's vocabulary."""
    random, found = np.random.default_rng(seed), []
    for length in random.normal(MEAN, SPREAD, count).clip(SHORTEST, LONGEST).round().astype(int).tolist():
        ids = random.integers(1996, words, length).tolist()
        ids[0], ids[20], ids[-1] = 101, 102, 102
        found.append(Encoded(ids, [0] * 21 + [1] * (length - 21), label=0))
    return found


def shares_for(
    cost: float, shape: EncoderShape, lengths: Sequence[int], *, fall: float = FALL, least: float = LEAST
) -> list[float]:
    """Falling shares with these relative FLOPs, by bisection of where they fall."""
    tokens, low, high = torch.tensor(lengths), 0.0, 2.0 * shape.layers
    for _ in range(30):
        middle = (low + high) / 2
        shares = falling_shares(middle, fall * shape.layers / 12, layers=shape.layers, floor=least)
        counts = (tokens[:, None] * torch.tensor(shares)).round().long().clamp(min=1)
        low, high = (middle, high) if float(relative_flops(shape, tokens, counts)) < cost else (low, middle)
    return shares


def pruned_run(model_folder: Path, cost: float, texts: Sequence[Encoded], out: Path, *, score_queries: int = 1) -> Path:
    """The folder of a run whose thresholds leave the shares that cost so much."""
    model, tokenizer = load_dense(model_folder, whole=True)
    shape, config = encoder_shape(model), PruneConfig(score="value", score_queries=score_queries)
    shares = shares_for(cost, shape, [len(text.input_ids) for text in texts])
    plan = PruningPlan(thresholds=(0.0,) * shape.layers, score=config.score, score_queries=score_queries)
    executor = PackedExecutor(Cpu(read_weights(model), plan))
    thresholds = executor.fit(shares, executor.pack(*inputs(texts)))
    prune_(model, config)
    gates_of(model).set_thresholds(thresholds)
    save(model, tokenizer, out)
    return out


def inputs(texts: Sequence[Encoded]) -> tuple[list[list[int]], list[list[int] | None]]:
    return [text.input_ids for text in texts], [text.token_type_ids for text in texts]


class Work:
    """Every row, with its files made."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        model, tokenizer = load_dense(options.model, whole=True)
        self.shape, words = encoder_shape(model), model.config.vocab_size
        self.texts = pairs(options.texts, words=words, seed=0)
        self.calibration = pairs(CALIBRATION, words=words, seed=1)
        self.scales = folder / SCALES
        write_scales(folder, find_scales(model, list(zip(*inputs(self.calibration), strict=True))))
        self.common: dict[str, Any] = {"pad_id": tokenizer.pad_token_id, "threads": options.threads, "means": "score"}

    def run(self, cost: float, *, score_queries: int = 1) -> Path:
        out = self.folder / f"{cost}-{score_queries}"
        given = (self.options.model, cost, self.calibration, out)
        return out if out.exists() else pruned_run(*given, score_queries=score_queries)

    def ours(self, name: str, folder: Path, dtype: str) -> Spec:
        # The dense model's scales for all: what they are worth does not depend on what is dropped.
        return Spec(name, dtype, folder, scales=self.scales if dtype == "int8-static" else None, **self.common)

    def specs(self) -> list[Spec]:
        model, fp32, int8 = self.options.model, self.folder / "fp32.onnx", self.folder / "int8.onnx"
        if not int8.exists():
            alone(make_onnx, model, fp32, padded(sorted(self.calibration[:2], key=lambda row: len(row.input_ids)), 0))
            alone(make_onnx_int8, fp32, int8)
        runs = [("thresher dense", model)] + [("thresher pruned", self.run(cost)) for cost in COSTS]
        rivals = [("hugging face", "fp32", model), ("onnxruntime, sorted", "int8", int8)]
        found = [Spec(*rival, **self.common) for rival in rivals]
        return found + [self.ours(*run, dtype) for run in runs for dtype in DTYPES]

    def race(self) -> list[Row]:
        return self._raced(self.specs())

    def queries(self) -> list[Row]:
        """The same share kept by scores from fewer queries, and the dense engine, in the fastest arithmetic."""
        folders = [(k, self.run(COSTS[0], score_queries=k)) for k in QUERIES]
        specs = [self.ours("thresher dense", self.options.model, "int8-static")]
        rows = self._raced(specs + [self.ours("thresher pruned", folder, "int8-static") for _, folder in folders])
        return [rows[0], *({**row, "score_queries": k} for (k, _), row in zip(folders, rows[1:], strict=True))]

    def memory(self) -> list[Row]:
        rows = []
        for spec in self.specs():
            row = {"engine": spec.engine, "dtype": spec.dtype, "path": spec.path.name}
            rows.append({**row, "peak_mib": peak_memory(spec, self.texts, BATCH).peak_mib})
            print(rows[-1], flush=True)
        return rows

    def old(self) -> list[Row]:
        """Seconds of the other commit and of this one, in processes of their own that take turns at every batch."""
        batches = [inputs(self.texts[i : i + BATCH]) for i in range(0, len(self.texts), BATCH)]
        plans = {"thresher dense": [0.0] * self.shape.layers}
        plans |= {
            f"thresher pruned, {cost}": gates_of(load(self.run(cost)).model).thresholds.tolist() for cost in COSTS
        }
        engines = [
            {"engine": name, "dtype": dtype, "thresholds": plans[name]} for name in plans for dtype in DTYPES[1:]
        ]
        job = {"model": str(self.options.model.resolve()), "scales": str(self.scales), "score": "value"}
        job |= {"threads": self.options.threads, "engines": engines, "batches": batches}
        (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        sides = [side(source, self.folder / "job.json") for source in (self.options.old / "src", HERE.parent / "src")]
        rows = []
        try:
            for number, engine in enumerate(engines):
                seconds: list[list[float]] = [[] for _ in sides]
                for turn in range(self.options.rounds + 1):
                    for batch in range(len(batches)):
                        for process, found in zip(sides, seconds, strict=True):
                            took = asked(process, f"{number} {batch}")
                            found += [took] if turn else []  # the first is to warm up
                before, after = (median(found) for found in seconds)
                ratio = median(one / other for one, other in zip(*seconds, strict=True))
                row = {"engine": engine["engine"], "dtype": engine["dtype"], "old_s": before, "new_s": after}
                rows.append({**row, "speedup": ratio, "speedup_of_minima": min(seconds[0]) / min(seconds[1])})
                print(rows[-1], flush=True)
        finally:
            for process in sides:
                process.communicate()  # closes what it reads from, at whose end it ends
        return rows

    def _raced(self, specs: Sequence[Spec]) -> list[Row]:
        named: dict[str, Any] = {"shape": self.shape, "batch_size": BATCH, "rounds": self.options.rounds}
        contenders = [build(spec) for spec in specs]
        rows = []
        for speed, spec in zip(
            race(contenders, self.texts, None, **named, latency_texts=LATENCY, means="score"), specs, strict=True
        ):
            rows.append({**speed.to_dict(), "path": spec.path.name})
            print(spec.engine, spec.dtype, f"{speed.texts_per_s:.2f} pairs/s at {speed.relative_flops:.2f}", flush=True)
        return rows


def side(source: Path, job: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, str(SIDE), str(job)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        process.communicate()
        raise SystemExit(f"the sources in {source} could not be measured; what they say stands above")
    return process


def asked(process: "subprocess.Popen[str]", question: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument(
        "--model", type=Path, required=True, help="a reranker's folder, of BERT's family and vocabulary"
    )
    parser.add_argument("--old", type=Path, help="a folder with another commit's src, named like the commit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--work", type=Path, help="keep what is made (graphs, runs, scales) here for the next call")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"part {unknown[0]!r} is not one of {', '.join(PARTS)}")
    if "old" in parts and (options.old is None or not (options.old / "src" / "thresher").is_dir()):
        parser.error("--old: give the other commit's folder, which has src/thresher in it")
    quiet_libraries()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        work = Work(options, folder)
        about = {"shape": f"{work.shape.layers} x {work.shape.width}", "model": shown(options.model)}
        lengths = [len(text.input_ids) for text in work.texts]
        about |= {"batch_size": BATCH, "texts": len(lengths), "tokens": sum(lengths) / len(lengths)}
        for part in parts:
            rows = getattr(work, part)()
            record = {"part": part, **about, "threads": options.threads, "rows": rows, **made_by("long.py")}
            append_record(options.out, record | ({"old": options.old.resolve().name} if part == "old" else {}))


if __name__ == "__main__":
    main()
