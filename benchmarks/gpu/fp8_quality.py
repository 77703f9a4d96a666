"""What eight bits of floating point cost on whole validation sets: quantized runs on a GPU, in fp16 and in fp8.

    thresher quantize RUN --out RUN-int8 --static-only
    PYTHONPATH=src python benchmarks/gpu/fp8_quality.py --run RUN-int8 --data DATA --out FILE.jsonl

Both answer every test row of the task that the run was trained for. A row says what each scores, and how many rows
they answer alike, and keep the same numbers of tokens in, layer by layer.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import made_by, open_run, shown  # noqa: E402

from thresher.engine.engine import Engine  # noqa: E402
from thresher.records import append_record  # noqa: E402

DTYPES = ("fp16", "fp8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder with the run's task")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added to this file")
    options = parser.parse_args()
    checkpoint, task, encoded = open_run(options.run, options.data)
    split, rows = next(iter(task.test.items()))
    truth, texts = task.spec.truth(rows, data=encoded), [(row.text, row.pair) if row.pair else row.text for row in rows]
    found = {dtype: Engine.load(options.run, device="cuda", dtype=dtype).predict_arrays(texts) for dtype in DTYPES}
    half, eight = (found[dtype] for dtype in DTYPES)
    row = {
        "run": shown(options.run),
        "task": task.spec.name,
        "split": split,
        "rows": len(rows),
        **{dtype: task.score(found[dtype].outputs, truth)["score"] for dtype in DTYPES},
        "same_answers": float((half.classes == eight.classes).mean()),
        "same_kept_counts": float((half.kept == eight.kept).all(axis=1).mean()),
        "relative_flops": checkpoint.manifest["quality"][split]["pruned"]["relative_flops"],
    }
    print(json.dumps(row))
    append_record(options.out, {**row, **made_by("gpu/fp8_quality.py", device="cuda")})


if __name__ == "__main__":
    main()
