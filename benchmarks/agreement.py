"""Does dropping equal masking on real data: the engine's predictions against the attached Hugging Face model's.

    python benchmarks/agreement.py --run FOLDER [--data DIR] [--dtypes fp32,bf16,int8] [--threads N]

The attached model masks tokens in padded batches; `reference` and `cpu` really drop them.
"""

from pathlib import Path

import torch
from measuring import RESULTS, keep_rows, made_by, open_run, read_rows, run_options, shown, write_between_marks

from thresher.engine.engine import Engine
from thresher.models.predict import predict
from thresher.tasks.encode import padded_batches

FILE = RESULTS / "agreement.jsonl"


def measure(run: Path, data: Path | None, dtypes: list[str]) -> None:
    checkpoint, _, encoded = open_run(run, data)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    contenders = [("reference", "fp32"), *(("cpu", dtype) for dtype in dtypes)]
    engines = [
        Engine.from_model(model, tokenizer, device="cpu", backend=backend, dtype=dtype) for backend, dtype in contenders
    ]
    rows = encoded.rows
    masked = predict(model, padded_batches(encoded, pad_id=tokenizer.pad_token_id), pruned=True)
    assert masked.kept is not None
    for (backend, dtype), engine in zip(contenders, engines, strict=True):
        parts = [rows[start : start + 32] for start in range(0, len(rows), 32)]
        outputs = [
            engine.executor.compute([r.input_ids for r in part], [r.token_type_ids for r in part]) for part in parts
        ]
        logits, kept = torch.cat([o.outputs for o in outputs]), torch.cat([o.kept for o in outputs])
        # the last layer's count is the shortcut's, not the gate's
        same_tokens = (kept[:, :-1] == masked.kept[:, :-1]).all(dim=1)
        row = {
            "run": shown(run),
            "backend": backend,
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "texts": len(rows),
            "same_prediction": int((logits.argmax(dim=-1) == masked.logits.argmax(dim=-1)).sum()),
            "same_kept_counts": int(same_tokens.sum()),
            "largest_logit_difference": float((logits - masked.logits)[same_tokens].abs().max()),
            **made_by("agreement.py"),
        }
        print({name: row[name] for name in ("backend", "dtype", "texts", "same_prediction", "same_kept_counts")})
        keep_rows(FILE, [row], lambda row: (row["run"], row["backend"], row["dtype"]))


def table() -> str:
    lines = [
        "| run | backend | dtype | texts | same prediction | same kept counts | largest difference of their logits |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in read_rows(FILE):
        counts = f"{row['texts']} | {row['same_prediction']} | {row['same_kept_counts']}"
        lines.append(
            f"| {row['run']} | {row['backend']} | {row['dtype']} | {counts} | {row['largest_logit_difference']:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    options = run_options(__doc__, dtypes="fp32,bf16,int8")
    if options.run:
        measure(options.run, options.data, options.dtypes.split(","))
    write_between_marks("agreement", table())
