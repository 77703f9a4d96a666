"""One checkpoint, several speeds: what scaling the thresholds at run time does to quality, cost and speed.

python benchmarks/dial.py --run FOLDER [--data DIR] [--dials 0,0.5,0.75,1,1.25,1.5,2] [--dtype bf16] [--threads N]
"""

from pathlib import Path

import numpy as np
import torch
from measuring import (
    RESULTS,
    keep_rows,
    latest_setting,
    made_by,
    milliseconds,
    open_run,
    read_rows,
    run_options,
    shown,
    write_between_marks,
)

from thresher.core.cost import engine_relative_flops
from thresher.engine.engine import Engine

FILE = RESULTS / "dial.jsonl"
BATCH = 32


def measure(run: Path, data: Path | None, dials: list[float], dtype: str) -> None:
    checkpoint, task, encoded = open_run(run, data)
    rows = encoded.rows
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    engines = [Engine.from_model(model, tokenizer, device="cpu", dtype=dtype, dial=dial) for dial in dials]
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    labels = np.array([row.label for row in rows])
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    for dial, engine in zip(dials, engines, strict=True):
        found = []

        def all_texts(engine: Engine = engine, found: list = found) -> None:
            found.clear()
            for batch in batches:
                found.append(engine.executor.compute([r.input_ids for r in batch], [r.token_type_ids for r in batch]))

        all_texts()
        seconds = min(milliseconds(all_texts) for _ in range(3)) / 1000
        kept = torch.cat([output.kept for output in found])
        row = {
            "run": shown(run),
            "dial": dial,
            "dtype": engine.executor.dtype,
            "threads": torch.get_num_threads(),
            "score": task.score(torch.cat([output.outputs for output in found]).numpy(), labels)["score"],
            "engine_relative_flops": engine_relative_flops(
                engine.executor.shape, lengths, kept, alone=engine.executor.plan.alone
            ),
            "texts_per_s": len(rows) / seconds,
            "kept_per_layer": kept.float().mean(dim=0).tolist(),
            **made_by("dial.py"),
        }
        print(
            f"dial {dial}: {row['score']:.4f} at {row['engine_relative_flops']:.3f}, {row['texts_per_s']:.0f} texts/s"
        )
        keep_rows(FILE, [row], lambda row: (row["device"], row["threads"], row["run"], row["dtype"], row["dial"]))


def table() -> str:
    rows = latest_setting(read_rows(FILE), ("device", "threads", "run", "dtype"))
    dense = next((row["texts_per_s"] for row in rows if row["dial"] == 0), None)
    lines = [f"`{rows[-1]['run']}`, {rows[-1]['dtype']}, {rows[-1]['threads']} threads, batch {BATCH}:", ""]
    lines += ["| dial | score | FLOPs in the engine | texts/s | against dial 0 |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["dial"]):
        gain = "-" if dense is None else f"{row['texts_per_s'] / dense:.2f}x"
        cost = f"{row['engine_relative_flops']:.3f} | {row['texts_per_s']:.0f} | {gain}"
        lines.append(f"| {row['dial']} | {100 * row['score']:.2f} | {cost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    options = run_options(__doc__, dials="0,0.5,0.75,1,1.25,1.5,2", dtype="bf16")
    if options.run:
        measure(options.run, options.data, [float(word) for word in options.dials.split(",")], options.dtype)
    write_between_marks("dial", table())
