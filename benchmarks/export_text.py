"""One text, as it comes: how long every way to compute it takes, over the texts of a file.

python benchmarks/export_text.py --run FOLDER --texts FILE.jsonl [--texts-timed 96] [--rounds 24] [--threads 2]
    [--work FOLDER [--prepare]]

Each text is computed by itself, from token ids to logits. Every contender has a process of its own, and they take turns
(export_turns.py); each has seen every text before, because OpenVINO compiles for every new length. Rivals are the dense
model as its users export it, in onnxruntime and OpenVINO; ours are the pruned graphs of --batch-one in both, and the
engine on its backends cpu and onnx. The files are those of export.py.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from export import cost_of
from export_subject import Subject
from export_turns import Spec, cores_of_others, started, turns, write_batches
from measuring import HERE, keep_rows, made_by, shown, spread

from thresher.hardware import native_bf16_on_cpu
from thresher.quiet import quiet_libraries

FILE = HERE / "export" / "one_text.jsonl"
RIVALS = tuple(f"{runtime} {dtype}, dense" for runtime in ("onnxruntime", "openvino") for dtype in ("fp32", "int8"))


def contenders_of(subject: Subject, runtimes: Sequence[str]) -> dict[str, Spec]:
    found = {}
    for runtime in runtimes:
        for dtype in ("fp32", "int8"):
            found[f"{runtime} {dtype}, dense"] = subject.graph("stock", runtime, dtype)
            found[f"{runtime} {dtype}, pruned"] = subject.graph("pruned", runtime, dtype)
    for backend, dtypes in (("cpu", ("bf16", "int8")), ("onnx", ("fp32", "int8"))):
        for dtype in dtypes:
            if dtype != "bf16" or native_bf16_on_cpu():
                found[f"engine {backend} {dtype}, pruned"] = subject.engine(backend, dtype)
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--texts-timed", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runtimes", default="onnxruntime,openvino")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(words)
    quiet_libraries()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        subject = Subject(options.run, options.texts, options.work or Path(name), options.threads)
        specs = contenders_of(subject, options.runtimes.split(","))
        if options.prepare:
            return
        given = subject.single(options.texts_timed)
        file = write_batches(subject.work / "texts.npz", given)
        contenders = started(stack, specs)
        for one in contenders.values():
            one.ask(batches=str(file))
        work = partial(turns, contenders, batches=len(given), rounds=options.rounds)
        times, others = cores_of_others(work, list(contenders.values()))
        kept = contenders["onnxruntime fp32, pruned"].ask(kept=True)
    lengths = [arrays["input_ids"].shape[1] for arrays in given]
    found = {name: spread(values.ravel().tolist()) for name, values in times.items()}
    p50 = {name: values["median"] for name, values in found.items()}
    best = min((name for name in p50 if name not in RIVALS), key=p50.__getitem__)
    row = {
        "model": shown(options.run),
        "texts": shown(options.texts),
        "texts_timed": len(given),
        "median_tokens": float(np.median(lengths)),
        "relative_flops": cost_of(subject, lengths, kept),
        "p50": p50,
        "p90": {name: values["p90"] for name, values in found.items()},
        "best": best,
        "rival_over_best": {name: p50[name] / p50[best] for name in RIVALS if name in p50},
        "rounds": options.rounds,
        "calls": next(iter(times.values())).shape[1],
        "threads": options.threads,
        "trained": subject.trained,
        "cores_of_others": others,
        **made_by("export_text.py"),
    }
    for name, value in sorted(p50.items(), key=lambda item: item[1]):
        print(f"{value:8.2f} ms  {name}")
    print(f"{row['median_tokens']:.0f} tokens, FLOPs {row['relative_flops']:.2f}, others {others} cores")
    keep_rows(options.out, [row], lambda row: (row["device"], row["threads"], row["model"], row["texts"]))


if __name__ == "__main__":
    main()
