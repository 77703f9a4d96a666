"""Where a pruned embedder loses: on short texts or long ones, on pairs that are alike or on those that are not.

    python -m thresher.experiments.embedding_losses RUN --base FOLDER --data DIR

`--data` has stsb, whose validation pairs are looked at; `--base` is the dense model that the run was made from. A
record is added to experiments/embeddings/losses.jsonl, and the page's table is drawn from the newest.

A pair's error is the difference that pruning makes to its cosine. `together`: the cosine between what pruning adds to
one text's embedding and what it adds to the other's. Where it is near 1, both move the same way.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.reranker_rows import Sources
from thresher.records import append_record, provenance
from thresher.tasks.metrics import correlation

FOLDER = Path("experiments/embeddings")
BANDS = ((0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0), (4.0, 5.01))  # of the similarity that people gave
Array = NDArray[Any]


def of_pairs(dense: Array, pruned: Array, lengths: Array, labels: Array) -> dict[str, Any]:
    """dense, pruned: (pairs, 2, width) embeddings of length 1; lengths: (pairs, 2) tokens; labels: (pairs,)."""
    was, now = ((both[:, 0] * both[:, 1]).sum(axis=1) for both in (dense, pruned))
    error, moved = now - was, pruned - dense
    sizes = np.linalg.norm(moved, axis=2)
    together = (moved[:, 0] * moved[:, 1]).sum(axis=1) / np.maximum(sizes.prod(axis=1), 1e-12)
    near = (dense * pruned).sum(axis=2).mean(axis=1)

    def part(chosen: Array) -> dict[str, Any]:
        return {
            "pairs": len(was[chosen]),
            "dense": correlation("spearman", was[chosen], labels[chosen]),
            "pruned": correlation("spearman", now[chosen], labels[chosen]),
            "cosine_to_dense": float(near[chosen].mean()),
            "pair_cosine_dense": float(was[chosen].mean()),
            "pair_cosine_pruned": float(now[chosen].mean()),
            "error_std": float(error[chosen].std()),
            "together": float(together[chosen].mean()),
        }

    mean = lengths.mean(axis=1)
    thirds = np.array_split(np.argsort(mean, kind="stable"), 3)
    return {
        "all": part(np.ones(len(labels), bool)),
        "by_length": [{"tokens": float(mean[own].mean()), **part(own)} for own in thirds],
        "by_similarity": [
            {"from": low, "to": min(5.0, high), **part((labels >= low) & (labels < high))} for low, high in BANDS
        ],
    }


def measure(run: Path, base: Path, data: Path) -> dict[str, Any]:
    from thresher.engine.engine import Engine
    from thresher.evaluation.contenders import load_ours

    rows = list(Sources(data, data).rows("stsb/validation"))
    texts = [row[name] for row in rows for name in ("sentence1", "sentence2")]
    found = {}
    for kind, folder in (("dense", base), ("pruned", run)):
        model, tokenizer = load_ours(f"thresher {kind}", folder)
        answers = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32").predict_arrays(texts)
        width = answers.outputs.shape[1]
        found[kind] = answers.outputs.reshape(len(rows), 2, width).astype(np.float64)
    lengths = np.asarray(answers.tokens).reshape(len(rows), 2)
    labels = np.array([row["label"] for row in rows], np.float64)
    kept = np.asarray(answers.kept, np.float64).mean(axis=0)
    about = {"run": run.name, "model": base.name, "rows": len(rows), "kept_per_layer": kept.round(3).tolist()}
    parts = of_pairs(found["dense"], found["pruned"], lengths, labels)
    return {**about, **parts, **provenance(device="cpu", seed=None)}


def table(record: dict[str, Any]) -> str:
    header = ["pairs", "number", "dense", "pruned", "cosine to dense", "a pair's cosine, dense", "pruned", "together"]
    lines = []
    parts = [("all", record["all"])]
    parts += [(f"of {part['tokens']:.0f} tokens a text", part) for part in record["by_length"]]
    parts += [(f"similar by {part['from']:g} to {part['to']:g}", part) for part in record["by_similarity"]]
    for name, part in parts:
        scores = [f"{100 * part[each]:.1f}" for each in ("dense", "pruned")]
        cosines = [f"{part[each]:.2f}" for each in ("cosine_to_dense", "pair_cosine_dense", "pair_cosine_pruned")]
        lines.append([name, str(part["pairs"]), *scores, *cosines, f"{part['together']:.2f}"])
    return markdown_table(header, lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="without it, only the table is drawn")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(words)
    file = options.folder / "losses.jsonl"
    if options.run is not None:
        append_record(file, measure(options.run, options.base, options.data))
    write_between_marks(
        options.folder / "README.md", "losses", table(json.loads(file.read_text(encoding="utf-8").splitlines()[-1]))
    )


if __name__ == "__main__":
    main()
