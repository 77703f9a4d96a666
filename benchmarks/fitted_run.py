"""A run for measurements of speed alone: a model's own weights, and thresholds set so that every layer keeps the share
of tokens that a recorded, trained run keeps.

python benchmarks/fitted_run.py --model FOLDER --record experiments/table1/records.jsonl --like sst2 --texts FILE.jsonl
    --out runs/NAME [--protect first,first_segment] [--rerank] [--target 0.5] [--rows 64]
python benchmarks/fitted_run.py --model FOLDER --record experiments/squad/records.jsonl --like squad_v2 --data DIR
    --out runs/NAME

Texts are JSON lines, in which the first two strings of a row are a text and its pair (.xz, too). With --data, rows are
those that choose checkpoints of the task that --like names, and the head is the task's. A folder without a head gets a
random one. --rerank says that the folder's one output is a reranker's score; --target takes the records of that target
alone, where a file has several. Nothing is trained: answers mean nothing, and the manifest says so.
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
from thresher.evaluation.quality import encoded_inputs
from thresher.jobs.training import prune_config
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import has_head, load_dense, save
from thresher.models.defaults import mean_by_, positions_of
from thresher.quiet import quiet_libraries
from thresher.tasks import Task, load_task
from thresher.tasks.splits import spread

Ids = tuple[list[int], list[int] | None]
SKIPPED = ("label", "idx", "id", "_id", "source", "group")  # strings of a row that are no text


def recorded_shares(file: Path, task: str, target: float | None = None) -> list[float]:
    """What each layer but the last passes on of a text's tokens, beside the protected ones, in the first record of a
    task, and of a target where one is given: layers that passed on as few as the last one passed on those."""
    pruned = [row for row in read_rows(file) if row.get("kept_per_layer") and row["relative_flops"] < 1]
    rows = [row for row in pruned if row.get("task") == task and target in (None, row.get("target"))]
    if not rows:
        known = sorted(
            {f"{row.get('task')} ({row['target']})" if "target" in row else str(row["task"]) for row in pruned}
        )
        asked = f"{task!r}" if target is None else f"{task!r} with target {target}"
        raise SystemExit(f"{file} has no record of {asked} with kept_per_layer; it has: {', '.join(known)}")
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


def read_pairs(model: Any, tokenizer: Any, texts: Sequence[tuple[str, str | None]]) -> list[Ids]:
    """Ids and types of texts, or of pairs."""
    limit = positions_of(model, None)
    read = [tokenizer(text, pair, truncation=True, max_length=limit) for text, pair in texts]
    return [(row["input_ids"], row.get("token_type_ids")) for row in read]


def dense_for(task: Task | None, folder: Path) -> tuple[Any, Any]:
    """The model with its head, or with a random one: the task's, or one with two outputs."""
    if task is None:
        return load_dense(folder, **({} if has_head(folder) else {"num_labels": 2}))
    spec = task.spec
    new = {} if has_head(folder, spec.num_labels, means=spec.means) else {"num_labels": spec.num_labels}
    if new and spec.labels:
        new |= {"id2label": dict(enumerate(spec.labels))}
    return load_dense(folder, means=spec.means, **new)


def fitted(model: Any, read: Sequence[Ids], shares: Sequence[float], config: PruneConfig) -> None:
    """Attach gates whose thresholds leave these shares on these texts, in place."""
    rules = {"score": config.score, "scale": config.scale, "protect": config.protect}
    plan = PruningPlan(thresholds=(0.0,) * (len(shares) + 1), separator_id=config.separator_id, **rules)
    executor = PackedExecutor(Reference(read_weights(model), plan))
    found = executor.fit([*shares, 0.0], executor.pack([ids for ids, _ in read], [types for _, types in read]))
    prune_(model, config)
    gates_of(model).set_thresholds([0.0 if share == 1 else at for share, at in zip([*shares, 0.0], found, strict=True)])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "record", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--like", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    for name in ("texts", "data"):
        source.add_argument(f"--{name}", type=Path)
    parser.add_argument("--protect")
    parser.add_argument("--rerank", action="store_true")
    parser.add_argument("--target", type=float)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args(words)
    quiet_libraries()
    torch.manual_seed(0)
    task = None if options.data is None else load_task(options.like, data=options.data)
    model, tokenizer = dense_for(task, options.model)
    if options.rerank:
        mean_by_(model, "score")
    shares = recorded_shares(options.record, options.like, options.target)
    if len(shares) + 1 != model.config.num_hidden_layers:
        raise SystemExit(f"the record is of {len(shares) + 1} layers, the model has {model.config.num_hidden_layers}")
    settings = {"score": "value", "separator_id": tokenizer.sep_token_id}
    if options.protect is not None:
        settings["protect"] = tuple(options.protect.split(","))
    if task is None:
        read = read_pairs(model, tokenizer, read_texts(options.texts, options.rows))
    else:
        rows = encoded_inputs(model, tokenizer, spread(task.selection, options.rows), max_length=None).rows
        read = [(row.input_ids, row.token_type_ids) for row in rows]
    fitted(model.eval(), read, shares, prune_config(settings, tokenizer, model))
    about = {"for": "speed alone: thresholds are fitted to the shares of a recorded run, nothing is trained"}
    described = {} if task is None else {"task": task.describe()}
    save(model, tokenizer, options.out, about={"fitted": {**about, **made_by("fitted_run.py")}, **described})
    print(f"saved {options.out}")


if __name__ == "__main__":
    main()
