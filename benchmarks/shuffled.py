"""Does the order of texts change an answer? The same texts, shuffled, through the engine on a CPU.

    python benchmarks/shuffled.py --run FOLDER [--data DIR] [--texts 256] [--threads N]

Batches are packed by length, so another order puts a text into another batch, beside other texts, at another place.
Counted are labels and numbers of kept tokens that differ from the first order's, over ten others, for each arithmetic.
"""

from pathlib import Path

import numpy as np
from measuring import RESULTS, keep_rows, made_by, open_run, run_options, shown

from thresher.engine.engine import Engine
from thresher.engine.scales import scales_file

FILE = RESULTS / "shuffled.jsonl"
ORDERS, DTYPES = 10, ("fp32", "bf16", "int8", "int8-static")


def measure(run: Path, data: Path | None, count: int) -> None:
    _, task, _ = open_run(run, data)
    rows = next(iter(task.test.values()))[:count]
    texts = [(row.text, row.pair) if row.pair else row.text for row in rows]
    for dtype in DTYPES if scales_file(run) else DTYPES[:-1]:
        engine = Engine.load(run, device="cpu", dtype=dtype)
        first = engine.predict_arrays(texts)
        labels = kept = 0
        for seed in range(ORDERS):
            order = np.random.default_rng(seed).permutation(len(texts))
            found = engine.predict_arrays([texts[i] for i in order])
            labels += int((found.classes != first.classes[order]).sum())
            kept += int((found.kept != first.kept[order]).any(axis=1).sum())
        answers = {"texts": len(texts), "orders": ORDERS, "other_labels": labels, "other_kept": kept}
        row = {"run": shown(run), "dtype": dtype, **answers, **made_by("shuffled.py")}
        print({name: row[name] for name in ("dtype", *answers)})
        keep_rows(FILE, [row], key=lambda row: (row["run"], row["dtype"]))


if __name__ == "__main__":
    options = run_options(__doc__, texts="256")
    measure(options.run, options.data, int(options.texts))
