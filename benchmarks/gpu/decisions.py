"""Does the GPU drop what the CPU's readable reference drops, on all of a task's held-out texts. Two steps:

    python benchmarks/gpu/decisions.py reference --run FOLDER --data DIR --file REFERENCE.npz       (no GPU needed)
    python benchmarks/gpu/decisions.py compare --run FOLDER --data DIR --file REFERENCE.npz --out FILE.jsonl

The reference also notes how near its nearest score came to each threshold: where the GPU keeps other numbers of tokens,
that distance at the first such layer is how wrong a score in half precision must have been.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import keep_rows, made_by, open_run, shown

from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import Reference
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.packed import PackedExecutor
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Weights, read_weights
from thresher.models.plan import plan_of

BATCHES = {"graph": 256, "sync": 256, "auto": 64}


class Noting(Reference):
    """The reference, with the relative distance of each run's nearest score to the layer's threshold."""

    def __init__(self, weights: Weights, plan: PruningPlan) -> None:
        super().__init__(weights, plan)
        self.nearest: list[Tensor] = []  # by pruning layer, (runs,) in the order of the call

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        context, scores = super().attend(index, hidden, runs, scored=scored)
        if scores is not None:
            distances = (scores / self.plan.thresholds[index] - 1).abs()
            distances[runs.first] = math.inf  # protected
            self.nearest.append(torch.stack([part.min() for part in distances.split(runs.lengths.tolist())]))
        return context, scores


def make_reference(options: argparse.Namespace) -> None:
    checkpoint, task, encoded = open_run(options.run, options.data)
    backend = Noting(read_weights(checkpoint.model), plan_of(checkpoint.model))
    engine = PackedExecutor(backend)
    logits, kept, nearest = [], [], []
    for number, row in enumerate(encoded.rows):  # one text at a time: order cannot matter
        backend.nearest.clear()
        output = engine.compute([row.input_ids], [row.token_type_ids])
        logits.append(output.outputs[0])
        kept.append(output.kept[0])
        nearest.append(torch.cat(backend.nearest))
        if number % 500 == 0:
            print(number, "of", len(encoded.rows), flush=True)
    found = {"logits": torch.stack(logits), "kept": torch.stack(kept), "nearest": torch.stack(nearest)}
    np.savez_compressed(options.file, **{name: value.numpy() for name, value in found.items()})


def compare(options: argparse.Namespace) -> None:
    checkpoint, task, encoded = open_run(options.run, options.data)
    plan = plan_of(checkpoint.model)
    truth = {name: torch.from_numpy(value) for name, value in np.load(options.file).items()}
    labels = np.array([row.label for row in encoded.rows])
    rows = encoded.rows
    for dtype in options.dtypes.split(","):
        for mode, size in BATCHES.items():
            engine = CudaExecutor(read_weights(checkpoint.model), plan, dtype=dtype, mode=mode, device=options.device)
            parts = [rows[start : start + size] for start in range(0, len(rows), size)]
            outputs = [engine.compute([r.input_ids for r in part], [r.token_type_ids for r in part]) for part in parts]
            logits, kept = torch.cat([o.outputs for o in outputs]), torch.cat([o.kept for o in outputs])
            record = {
                "run": shown(options.run),
                "task": task.spec.name,
                "mode": mode,
                "dtype": dtype,
                "batch": size,
                **agreement(logits, kept, truth, pruning=list(plan.pruning_layers)),
                "metric": task.score(logits.numpy(), labels),
                "metric_of_reference": task.score(truth["logits"].numpy(), labels),
                **made_by("gpu/decisions.py", device=options.device),
            }
            print({name: value for name, value in record.items() if name not in ("versions", "command", "device")})
            keep_rows(options.out, [record], lambda row: tuple(row[name] for name in ("run", "task", "mode", "dtype")))


def agreement(logits: Tensor, kept: Tensor, truth: dict[str, Tensor], *, pruning: list[int]) -> dict[str, Any]:
    """How many texts keep the same number of tokens in all layers, and how near a threshold the others were."""
    other = kept[:, pruning] != truth["kept"][:, pruning]
    differs = other.any(dim=1)
    first = other.int().argmax(dim=1)
    distances = truth["nearest"].gather(1, first[:, None]).squeeze(1)[differs]
    same = ~differs
    return {
        "texts": len(kept),
        "same_kept_counts": int(same.sum()),
        "same_prediction": int((logits.argmax(-1) == truth["logits"].argmax(-1)).sum()),
        "largest_logit_difference_where_same": float((logits - truth["logits"])[same].abs().max()),
        "furthest_from_threshold_where_other": float(distances.max()) if len(distances) else 0.0,
        "tokens_kept": int(kept[:, pruning].sum()),
        "tokens_kept_by_reference": int(truth["kept"][:, pruning].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("reference", "compare"))
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--file", type=Path, required=True, help="the reference's outputs, .npz")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("decisions.jsonl"))
    parser.add_argument("--dtypes", default="fp16,bf16")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    with torch.inference_mode():
        {"reference": make_reference, "compare": compare}[options.step](options)


if __name__ == "__main__":
    main()
