"""A run for measurements of speed alone: a model's own weights, and thresholds set so that every layer keeps the share
of tokens that a recorded, trained run keeps.

python benchmarks/fitted_run.py --model FOLDER --record experiments/table1/records.jsonl --like sst2 --texts FILE.jsonl
    --out runs/NAME [--protect first,first_segment] [--rows 64]

Texts are JSON lines, in which the first two strings of a row are a text and its pair (.xz, too). A folder without a
head gets a random one. Nothing is trained: answers mean nothing, and the manifest says so.
"""

import argparse
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import made_by, read_rows

from thresher.config import PruneConfig
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import Reference
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import read_weights
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import has_head, load_dense, save
from thresher.quiet import quiet_libraries
from thresher.tasks.encode import usable_positions

SKIPPED = ("label", "idx", "id", "_id", "source", "group")  # strings of a row that are no text


def recorded_shares(file: Path, task: str) -> list[float]:
    """What each layer but the last passes on of a text's tokens, beside the protected ones, in the first record of a
    task: layers that passed on as few as the last one passed on those."""
    rows = [row for row in read_rows(file) if row.get("task") == task and row.get("kept_per_layer")]
    if not rows:
        known = sorted({str(row.get("task")) for row in read_rows(file)})
        raise SystemExit(f"{file} has no record of {task!r} with kept_per_layer; it has: {', '.join(known)}")
    kept = rows[0]["kept_per_layer"]
    whole, least = kept[0], kept[-1]
    return [(value - least) / (whole - least) for value in kept[:-1]]


def read_texts(file: Path, count: int) -> list[tuple[str, str | None]]:
    opened = lzma.open if file.suffix == ".xz" else open
    found: list[tuple[str, str | None]] = []
    with opened(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            texts = [value for name, value in row.items() if isinstance(value, str) and name not in SKIPPED]
            found.append((texts[0], texts[1] if len(texts) > 1 else None))
            if len(found) == count:
                break
    return found


def fitted(model: Any, tokenizer: Any, texts: Sequence[Any], shares: Sequence[float], config: PruneConfig) -> None:
    """Attach gates whose thresholds leave these shares on these texts, in place."""
    limit = usable_positions(model.config)
    read = [tokenizer(text, pair, truncation=True, max_length=limit) for text, pair in texts]
    types = [row.get("token_type_ids") for row in read]
    rules = {"score": config.score, "scale": config.scale, "protect": config.protect}
    plan = PruningPlan(thresholds=(0.0,) * (len(shares) + 1), separator_id=config.separator_id, **rules)
    executor = PackedExecutor(Reference(read_weights(model), plan))
    found = executor.fit([*shares, 0.0], executor.pack([row["input_ids"] for row in read], types))
    prune_(model, config)
    gates_of(model).set_thresholds([0.0 if share == 1 else at for share, at in zip([*shares, 0.0], found, strict=True)])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "record", "texts", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--like", required=True)
    parser.add_argument("--protect", default="first")
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args(words)
    quiet_libraries()
    torch.manual_seed(0)
    model, tokenizer = load_dense(options.model, **({} if has_head(options.model) else {"num_labels": 2}))
    shares = recorded_shares(options.record, options.like)
    if len(shares) + 1 != model.config.num_hidden_layers:
        raise SystemExit(f"the record is of {len(shares) + 1} layers, the model has {model.config.num_hidden_layers}")
    protect = tuple(options.protect.split(","))
    config = PruneConfig(score="value", protect=protect, separator_id=tokenizer.sep_token_id)
    fitted(model.eval(), tokenizer, read_texts(options.texts, options.rows), shares, config)
    about = {"for": "speed alone: thresholds are fitted to the shares of a recorded run, nothing is trained"}
    save(model, tokenizer, options.out, about={"fitted": {**about, **made_by("fitted_run.py")}})
    print(f"saved {options.out}")


if __name__ == "__main__":
    main()
