"""Shares of the engine's time by kind of operation, dense and pruned, from torch's profiler on one thread.

python benchmarks/where_time_goes.py --run FOLDER [--data DIR] [--dtype int8-static]
"""

from collections import Counter
from pathlib import Path

import torch
from measuring import (
    RESULTS,
    Row,
    encoded_for,
    keep_rows,
    made_by,
    open_run,
    read_rows,
    run_options,
    shown,
    write_between_marks,
)
from torch.profiler import ProfilerActivity, profile

from thresher.engine.choose import STATIC
from thresher.engine.engine import Engine
from thresher.engine.find_scales import find_scales

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
    checkpoint, task, test = open_run(run, data)
    texts, calibration = (
        [(row.input_ids, row.token_type_ids) for row in rows[:TEXTS]]
        for rows in (test.rows, encoded_for(checkpoint, task.train[:TEXTS]).rows)
    )
    scales = find_scales(checkpoint.model, calibration) if dtype == STATIC else ()
    for name, dial in (("dense", 0.0), ("pruned", 1.0)):
        engine = Engine.from_model(
            checkpoint.model, checkpoint.tokenizer, device="cpu", dtype=dtype, dial=dial, scales=scales
        )
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        for batch in batches[:1]:
            engine.executor.compute(*zip(*batch, strict=True))
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for batch in batches:
                engine.executor.compute(*zip(*batch, strict=True))
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
    options = run_options(__doc__, dtype=STATIC)
    if options.run:
        measure(options.run, options.data, options.dtype)
    write_between_marks("where_time_goes", table())
