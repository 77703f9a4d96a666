"""What an exported graph gains: pruned over the stock dense export, and over the dense graph of the same builder.

python benchmarks/export.py --run FOLDER --texts FILE.jsonl [--tokens 27,128,256] [--batches 1,32] [--rounds 15]
    [--threads 2] [--runtimes onnxruntime,openvino] [--dtypes fp32,int8] [--work FOLDER [--prepare]]

Texts are those of the file, end to end and cut to one length: ratios are of speed, and say nothing of quality. Rounds
are interleaved: every graph in turn, and the ratio is that of medians. At batch 1 the pruned and our dense graph are
those of --batch-one, and beside onnxruntime's our engine takes its turns, on its backends cpu and onnx. Stock is the
Hugging Face model by torch's exporter with onnxruntime's optimiser on, in int8 by onnxruntime's dynamic quantization;
for OpenVINO its own converter, in int8 by NNCF. Ours in int8 has the run's own scales, or if it has none, some found on
the texts. With --work, files are kept there; --prepare makes them and ends.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fitted_run import read_texts
from measuring import HERE, Row, keep_rows, made_by, milliseconds, shown, spread

from thresher.core.cost import engine_relative_flops
from thresher.engine.choose import choose
from thresher.engine.executor import Executor
from thresher.engine.find_scales import find_scales
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.graphs.opened import open_file
from thresher.engine.scales import read_scales
from thresher.engine.weights import LayerScales, read_weights
from thresher.evaluation.lineup import dense_of
from thresher.evaluation.rivals import Arrays, make_onnx, make_onnx_int8, make_openvino, make_openvino_int8
from thresher.exporting.folder import takes_types, write_graph, write_openvino
from thresher.jobs.quiet import quiet_libraries
from thresher.models.checkpoint import load
from thresher.models.heads import head_of
from thresher.models.plan import PruningPlan, plan_of

FILE = HERE / "export" / "results.jsonl"
KEY = ("device", "threads", "model", "runtime", "dtype", "batch", "tokens")
CALIBRATION = 64  # texts
PAUSE = 0.02  # seconds before each turn: threads of the one before still spin, and would hold a core that it needs
SUFFIX = {"onnxruntime": "onnx", "openvino": "xml"}


@dataclass
class Subject:
    """A run, texts for it, and the folder in which its files are made."""

    run: Path
    texts: Path
    work: Path

    def __post_init__(self) -> None:
        self.checkpoint = load(self.run)
        model = self.checkpoint.model
        if head_of(model).means == "embedding":
            raise SystemExit(f"{self.run} is an embedder; the stock export to compare with is that of a classifier")
        self.weights, self.plan = read_weights(model), plan_of(model)
        self.types = takes_types(self.weights, self.checkpoint.tokenizer)
        self.work.mkdir(parents=True, exist_ok=True)

    @cached_property
    def rows(self) -> list[list[int]]:
        tokenizer, limit = self.checkpoint.tokenizer, self.weights.positions
        texts = read_texts(self.texts, 2048)
        return [list(tokenizer(text, pair, truncation=True, max_length=limit)["input_ids"]) for text, pair in texts]

    @cached_property
    def scales(self) -> list[LayerScales]:
        model, rows = self.checkpoint.model, self.rows[:CALIBRATION]
        return read_scales(self.run) or find_scales(model, [(row, None) for row in rows])

    def arrays(self, *, batch: int, tokens: int) -> Arrays:
        """Texts without padding. Each begins and ends as the tokenizer begins and ends a text; words fill it."""
        size, first, last = min(tokens, self.weights.positions), self.rows[0][0], self.rows[0][-1]
        words = np.array([word for row in self.rows for word in row[1:-1]])
        ids = np.resize(words, (batch, size))
        ids[:, 0], ids[:, -1] = first, last
        return self._with_types(ids)

    def _with_types(self, ids: Any) -> Arrays:
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return {**arrays, "token_type_ids": np.zeros_like(ids)} if self.types else arrays

    def stock(self, runtime: str, dtype: str) -> Path:
        dense = dense_of(self.run, self.checkpoint).folder
        fp32, int8 = (self.work / f"stock-{runtime}-{name}.{SUFFIX[runtime]}" for name in ("fp32", "int8"))
        if not fp32.exists():
            make = make_onnx if runtime == "onnxruntime" else make_openvino
            make(dense, fp32, self.arrays(batch=2, tokens=16))
        if dtype == "int8" and not int8.exists():
            if runtime == "onnxruntime":
                make_onnx_int8(fp32, int8)
            else:
                rows = [self._with_types(np.array([row])) for row in self.rows[:CALIBRATION]]
                make_openvino_int8(fp32, int8, rows)
        return int8 if dtype == "int8" else fp32

    def ours(self, kind: str, runtime: str, dtype: str, *, one: bool) -> Path:
        file = self.work / f"{kind}-{runtime}-{dtype}-{'one' if one else 'batch'}.{SUFFIX[runtime]}"
        if not file.exists():
            plan = self.plan if kind == "pruned" else PruningPlan.dense(self.plan.layers, reads=self.plan.reads)
            form = Form(types=self.types, one=one, kept=True)
            scales = self.scales if dtype == "int8" else []
            write = write_graph if runtime == "onnxruntime" else write_openvino
            write(build_model(self.weights, plan, form=form, scales=scales), file)
        return file

    def engines(self, dtype: str) -> dict[str, Executor]:
        """Our engine in the same arithmetic, by its backends."""
        scales = self.scales if dtype == "int8" else []
        name = "int8-static" if scales else dtype
        return {
            f"engine {backend}": choose(backend, name, scales=scales).build(self.weights, self.plan)
            for backend in ("cpu", "onnx")
        }

    def files(self, runtime: str, dtype: str, *, one: bool) -> dict[str, Path]:
        ours = {kind: self.ours(kind, runtime, dtype, one=one) for kind in ("pruned", "dense")}
        return {"stock": self.stock(runtime, dtype), **ours}


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, all in turn in every round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for work in runs.values():
        work()
    for _ in range(rounds):
        for name, work in runs.items():
            time.sleep(PAUSE)
            times[name].append(milliseconds(work))
    return {name: spread(found)["median"] for name, found in times.items()}


def measure(subject: Subject, runtime: str, dtype: str, options: argparse.Namespace) -> None:
    """All lengths and batches of one runtime and arithmetic."""
    threads = options.threads
    for batch in options.batches:
        files = subject.files(runtime, dtype, one=batch == 1)
        graphs = {kind: open_file(file, threads=threads) for kind, file in files.items()}
        engines = subject.engines(dtype) if batch == 1 and runtime == "onnxruntime" else {}
        for length in options.tokens:
            given = subject.arrays(batch=batch, tokens=length)
            work: dict[str, Callable[[], object]] = {
                kind: partial(graph, graph.names[:1], given) for kind, graph in graphs.items()
            }
            work |= {name: partial(engine.compute, given["input_ids"].tolist()) for name, engine in engines.items()}
            times = interleaved(work, options.rounds)
            (kept,) = graphs["pruned"](["kept"], given)
            lengths = torch.from_numpy(given["attention_mask"].sum(axis=1))
            cost = engine_relative_flops(
                subject.weights.shape, lengths, torch.from_numpy(kept), alone=subject.plan.alone
            )
            row: Row = {
                "model": shown(subject.run),
                "runtime": runtime,
                "dtype": dtype,
                "batch": batch,
                "tokens": given["input_ids"].shape[1],
                "pruned_over_stock": times["stock"] / times["pruned"],
                "pruned_over_own_dense": times["dense"] / times["pruned"],
                "relative_flops": cost,
                "milliseconds": times,
                "rounds": options.rounds,
                "threads": threads,
                "trained": "fitted" not in subject.checkpoint.manifest,
                **made_by("export.py"),
            }
            ratios = f"{row['pruned_over_stock']:.2f}x stock, {row['pruned_over_own_dense']:.2f}x our dense graph"
            where = f"{runtime} {dtype}, batch {batch}, {row['tokens']} tokens"
            print(f"{where}: {ratios}, FLOPs {cost:.2f}, {times['pruned']:.1f} ms", flush=True)
            keep_rows(options.out, [row], lambda row: tuple(row[name] for name in KEY))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", default="27,128,256")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--runtimes", default="onnxruntime,openvino")
    parser.add_argument("--dtypes", default="fp32,int8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(words)
    quiet_libraries()
    torch.set_num_threads(options.threads)
    options.tokens, options.batches = (
        [int(word) for word in text.split(",")] for text in (options.tokens, options.batches)
    )
    with tempfile.TemporaryDirectory() as name:
        subject = Subject(options.run, options.texts, options.work or Path(name))
        for runtime in options.runtimes.split(","):
            for dtype in options.dtypes.split(","):
                if options.prepare:
                    for batch in options.batches:
                        subject.files(runtime, dtype, one=batch == 1)
                else:
                    measure(subject, runtime, dtype, options)


if __name__ == "__main__":
    main()
