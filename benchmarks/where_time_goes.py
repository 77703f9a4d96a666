"""Shares of the engine's time by kind of operation, dense and pruned, from torch's profiler on one thread.

python benchmarks/where_time_goes.py --run FOLDER [--data DIR] [--dtype int8-static]
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from measuring import RESULTS, Row, keep_rows, made_by, read_rows, shown, write_between_marks
from torch.profiler import ProfilerActivity, profile

from thresher.cli.options import load_test_rows, trained_length
from thresher.cli.output import quiet_libraries
from thresher.engine.choose import STATIC
from thresher.engine.engine import Engine
from thresher.engine.quantize import find_steps
from thresher.models.checkpoint import load, read_manifest
from thresher.tasks.encode import encode, usable_positions

FILE = RESULTS / "where_time_goes.jsonl"
TEXTS, BATCH = 128, 32
KINDS = {
    "products": ("aten::addmm", "aten::mm", "onednn::qlinear_pointwise"),
    "attention": ("aten::bmm", "aten::_softmax", "aten::index_select", "aten::copy_"),
    "GELU": ("aten::gelu",),
    "norms": ("aten::native_layer_norm",),
}


def measure(run: Path, data: Path | None, dtype: str) -> None:
    torch.set_num_threads(1)
    manifest = read_manifest(run)
    task = load_test_rows(run, manifest, task=None, data=data, test=None, columns=(None, None, None))
    checkpoint = load(run)
    limits = {"max_length": trained_length(manifest), "positions": usable_positions(checkpoint.model.config)}
    texts, calibration = (
        [(row.input_ids, row.token_type_ids) for row in encode(checkpoint.tokenizer, rows, **limits).rows]
        for rows in (next(iter(task.test.values()))[:TEXTS], task.train[:TEXTS])
    )
    steps = find_steps(checkpoint.model, calibration) if dtype == STATIC else ()
    for name, dial in (("dense", 0.0), ("pruned", 1.0)):
        engine = Engine.from_model(checkpoint.model, checkpoint.tokenizer, dtype=dtype, dial=dial, steps=steps)
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        for batch in batches[:1]:
            engine.packed.logits(*zip(*batch, strict=True))
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for batch in batches:
                engine.packed.logits(*zip(*batch, strict=True))
        times = Counter[str]()
        for event in found.key_averages():
            kind = next((kind for kind, names in KINDS.items() if event.key in names), "the rest")
            times[kind] += event.self_cpu_time_total
        total = sum(times.values())
        row: Row = {
            "run": shown(run),
            "engine": name,
            "dtype": dtype,
            "ms_per_batch": total / 1000 / len(batches),
            "shares": {kind: time / total for kind, time in times.most_common()},
            **made_by("where_time_goes.py"),
        }
        print(name, {kind: round(share, 3) for kind, share in row["shares"].items()})
        keep_rows(FILE, [row], lambda row: (row["run"], row["engine"], row["dtype"]))


def table() -> str:
    kinds = [*KINDS, "the rest"]
    lines = ["| run | dtype | " + " | ".join(kinds) + " |", "|" + "---|" * (2 + len(kinds))]
    for row in read_rows(FILE):
        shares = " | ".join(f"{100 * row['shares'].get(kind, 0):.0f}%" for kind in kinds)
        lines.append(f"| {row['run']}, {row['engine']} | {row['dtype']} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dtype", default=STATIC)
    options = parser.parse_args()
    quiet_libraries()
    if options.run:
        measure(options.run, options.data, options.dtype)
    write_between_marks("where_time_goes", table())
