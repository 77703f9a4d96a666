"""What an exported graph gains: pruned over the stock dense export, and over the dense graph of the same builder.

python benchmarks/export.py --run FOLDER --texts FILE.jsonl [--tokens 27,128,256] [--batches 1,32] [--rounds 25]
    [--threads 2] [--runtimes onnxruntime,openvino] [--dtypes fp32,int8] [--work FOLDER [--prepare]]

Texts are those of the file, end to end and cut to one length, eight batches of each length: ratios are of speed, and
say nothing of quality. Every contender has a process of its own, and they take turns (export_turns.py); a ratio is that
of the medians. At batch 1 the pruned and our dense graph are those of --batch-one, and beside onnxruntime's our engine
takes its turns, on its backends cpu and onnx; in OpenVINO also the pruned graph without idle rows (plain). Stock is the
Hugging Face model by torch's exporter with onnxruntime's optimiser on, in int8 by onnxruntime's dynamic quantization;
for OpenVINO its own converter, in int8 by NNCF. Ours in int8 has the run's own scales, or if it has none, some found on
the texts. With --work, files are kept there; --prepare makes them and ends.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from export_subject import Subject
from export_turns import Contender, cores_of_others, started, turns, write_batches
from measuring import HERE, Row, keep_rows, made_by, shown, spread

from thresher.core.cost import engine_relative_flops
from thresher.quiet import quiet_libraries

FILE = HERE / "export" / "results.jsonl"
KEY = ("device", "threads", "model", "runtime", "dtype", "batch", "tokens")


def cost_of(subject: Subject, lengths: Sequence[int], kept: list[list[int]]) -> float:
    shape, alone = subject.weights.shape, subject.plan.alone
    return engine_relative_flops(shape, torch.tensor(lengths), torch.tensor(kept), alone=alone)


def point(subject: Subject, contenders: dict[str, Contender], *, batch: int, tokens: int, rounds: int) -> Row:
    """Times of all contenders at one length, and what follows from them."""
    given = subject.batches(batch=batch, tokens=tokens)
    file = write_batches(subject.work / "batches.npz", given)
    for one in contenders.values():
        one.ask(batches=str(file))
    work = partial(turns, contenders, batches=len(given), rounds=rounds)
    times, others = cores_of_others(work, list(contenders.values()))
    lengths = [int(count) for arrays in given for count in arrays["attention_mask"].sum(axis=1)]
    found = {name: spread(values.ravel().tolist()) for name, values in times.items()}
    medians = {name: values["median"] for name, values in found.items()}
    per_round = {name: np.median(values, axis=1) for name, values in times.items()}
    return {
        "batch": batch,
        "tokens": given[0]["input_ids"].shape[1],
        "pruned_over_stock": medians["stock"] / medians["pruned"],
        "pruned_over_own_dense": medians["dense"] / medians["pruned"],
        "relative_flops": cost_of(subject, lengths, contenders["pruned"].ask(kept=True)),
        "milliseconds": medians,
        "p10_p90": {name: [values["p10"], values["p90"]] for name, values in found.items()},
        "over_stock_by_round": spread((per_round["stock"] / per_round["pruned"]).tolist()),
        "rounds": rounds,
        "calls": times["pruned"].shape[1],
        "cores_of_others": others,
    }


def measure(subject: Subject, runtime: str, dtype: str, options: argparse.Namespace) -> None:
    """All lengths and batches of one runtime and arithmetic."""
    for batch in options.batches:
        with ExitStack() as stack:
            contenders = started(stack, subject.contenders(runtime, dtype, one=batch == 1))
            for length in options.tokens:
                found = point(subject, contenders, batch=batch, tokens=length, rounds=options.rounds)
                about = {"model": shown(subject.run), "runtime": runtime, "dtype": dtype}
                row = {**about, **found, "threads": options.threads, "trained": subject.trained}
                row |= made_by("export.py")
                ratios = f"{row['pruned_over_stock']:.2f}x stock, {row['pruned_over_own_dense']:.2f}x our dense graph"
                where = f"{runtime} {dtype}, batch {batch}, {row['tokens']} tokens"
                times = ", ".join(f"{name} {value:.2f}" for name, value in row["milliseconds"].items())
                cost = f"FLOPs {row['relative_flops']:.2f}, others {row['cores_of_others']} cores"
                print(f"{where}: {ratios}, {cost}; ms: {times}", flush=True)
                keep_rows(options.out, [row], lambda row: tuple(row[name] for name in KEY))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", default="27,128,256")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--runtimes", default="onnxruntime,openvino")
    parser.add_argument("--dtypes", default="fp32,int8")
    parser.add_argument("--rounds", type=int, default=25)
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
        subject = Subject(options.run, options.texts, options.work or Path(name), options.threads)
        for runtime in options.runtimes.split(","):
            for dtype in options.dtypes.split(","):
                if options.prepare:
                    for batch in options.batches:
                        subject.contenders(runtime, dtype, one=batch == 1)
                else:
                    measure(subject, runtime, dtype, options)


if __name__ == "__main__":
    main()
