"""What an exported graph gains: pruned over the stock dense export, and over the dense graph of the same builder.

python benchmarks/export.py --run FOLDER [--tokens 27,128,256] [--batches 1,32] [--rounds 15] [--threads 1]

Texts are random tokens of one length: the ratio is of speed, and says nothing of quality. Rounds are interleaved: every
graph in turn, and the ratio is that of medians. At batch 1 the pruned and our dense graph are those of --batch-one.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import HERE, Row, keep_rows, made_by, milliseconds, shown, spread

from thresher.core.cost import engine_relative_flops
from thresher.engine.weights import Weights, read_weights
from thresher.evaluation.lineup import dense_of
from thresher.evaluation.rivals import Arrays, Forward, make_onnx, open_onnxruntime
from thresher.exporting.build import Form, build_model
from thresher.exporting.folder import takes_types, write_graph
from thresher.jobs.quiet import quiet_libraries
from thresher.models.checkpoint import load
from thresher.models.heads import head_of
from thresher.models.plan import PruningPlan, plan_of

FILE = HERE / "export" / "results.jsonl"
KEY = ("device", "threads", "model", "runtime", "dtype", "batch", "tokens")


def texts(weights: Weights, *, batch: int, tokens: int, types: bool) -> Arrays:
    """Texts without padding; their first token is the same, as a classification token is."""
    ids = np.random.default_rng(0).integers(0, len(weights.word), (batch, tokens))
    ids[:, 0] = ids[0, 0]
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {**arrays, "token_type_ids": np.zeros_like(ids)} if types else arrays


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, all in turn in every round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for work in runs.values():
        work()
    for _ in range(rounds):
        for name, work in runs.items():
            times[name].append(milliseconds(work))
    return {name: spread(found)["median"] for name, found in times.items()}


def measure(
    run: Path, *, tokens: Sequence[int], batches: Sequence[int], rounds: int, threads: int, file: Path = FILE
) -> None:
    checkpoint = load(run)
    model = checkpoint.model
    if head_of(model).means == "embedding":
        raise SystemExit(f"{run} is an embedder; the stock export to compare with is that of a classifier or reranker")
    weights, plan = read_weights(model), plan_of(model)
    types = takes_types(weights, checkpoint.tokenizer)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stock = folder / "stock.onnx"
        make_onnx(dense_of(run, checkpoint).folder, stock, texts(weights, batch=2, tokens=16, types=types))
        for batch in batches:
            graphs: dict[str, Forward] = {"stock": open_onnxruntime(stock, threads=threads)}
            form = Form(types=types, one=batch == 1)
            for kind, chosen in (("pruned", plan), ("dense", PruningPlan.dense(plan.layers, reads=plan.reads))):
                write_graph(build_model(weights, chosen, form=form), folder / f"{kind}.onnx")
                graphs[kind] = open_onnxruntime(folder / f"{kind}.onnx", threads=threads)
            counting = folder / "counting.onnx"
            write_graph(build_model(weights, plan, form=Form(types=types, kept=True)), counting)
            for length in tokens:
                given = texts(weights, batch=batch, tokens=min(length, weights.positions), types=types)
                work = {kind: partial(forward, given) for kind, forward in graphs.items()}
                times = interleaved(work, rounds)
                row: Row = {
                    "model": shown(run),
                    "runtime": "onnxruntime",
                    "dtype": "fp32",
                    "batch": batch,
                    "tokens": given["input_ids"].shape[1],
                    "pruned_over_stock": times["stock"] / times["pruned"],
                    "pruned_over_own_dense": times["dense"] / times["pruned"],
                    "relative_flops": relative_flops(counting, weights, plan, given),
                    "milliseconds": times,
                    "rounds": rounds,
                    "threads": threads,
                    **made_by("export.py"),
                }
                ratios = f"{row['pruned_over_stock']:.2f}x stock, {row['pruned_over_own_dense']:.2f}x our dense graph"
                print(f"batch {batch}, {row['tokens']} tokens: {ratios}, FLOPs {row['relative_flops']:.2f}")
                keep_rows(file, [row], lambda row: tuple(row[name] for name in KEY))


def relative_flops(file: Path, weights: Weights, plan: PruningPlan, given: Arrays) -> float:
    """What these texts cost, by the counts that the graph itself gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    kept = torch.from_numpy(session.run(["kept"], given)[0])
    lengths = torch.from_numpy(given["attention_mask"].sum(axis=1))
    return engine_relative_flops(weights.shape, lengths, kept, alone=plan.alone)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--tokens", default="27,128,256")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(words)
    quiet_libraries()
    torch.set_num_threads(options.threads)
    tokens, batches = ([int(word) for word in text.split(",")] for text in (options.tokens, options.batches))
    measure(
        options.run, tokens=tokens, batches=batches, rounds=options.rounds, threads=options.threads, file=options.out
    )


if __name__ == "__main__":
    main()
