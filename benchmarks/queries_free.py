"""Whether some queries can stand for all when a reranker's tokens are judged, without training: what is left of its
order where every query's attention counts, one in 4, 8 or 16, and the first token's alone.

    python -m thresher.experiments.reranker_rows --data DATA --more MORE --out PREPARED
    python benchmarks/queries_free.py MODEL --rows PREPARED/scifact.jsonl.xz [--queries 40] [--candidates 25]

Every rule has thresholds of its own, which leave the same shares of tokens in every layer on other pairs; so all cost
about the same, and only which tokens go differs. Thresholds without training lose far more than trained ones: rules
are to be compared with one another here, and with nothing else.
"""

import argparse
import tempfile
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from long import pruned_run
from measuring import HERE, RESULTS, Row, keep_rows, made_by, read_rows, write_between_marks

from thresher.core.cost import relative_flops
from thresher.core.scores import queries_in_words
from thresher.engine.engine import Engine
from thresher.experiments.rows import read_rows as rows_in
from thresher.models.checkpoint import load_dense
from thresher.tasks.encode import encode
from thresher.tasks.ranking import mean_by_query, order_agreement
from thresher.tasks.task import Example

OUT, PAGE = RESULTS / "queries_free.jsonl", HERE.parent / "experiments" / "queries" / "README.md"
RULES = (1, 4, 8, 16, 0)
FITTED = 128  # pairs


def measured(model: Path, judged: list[Row], others: list[Row], targets: list[float]) -> list[Row]:
    pairs = [(row["query"], row["document"]) for row in judged]
    names = {name: number for number, name in enumerate(dict.fromkeys(row["group"] for row in judged))}
    groups = np.array([names[row["group"]] for row in judged])
    labels = np.array([row["label"] for row in judged], np.float64)
    dense = Engine.load(model, device="cpu", dtype="bf16").predict_arrays(pairs)
    _, tokenizer = load_dense(model, whole=True)
    examples = [Example(row["query"], row["document"], None) for row in others]
    fitted = encode(tokenizer, examples, max_length=512, positions=512).rows
    rows = []
    for target in targets:
        for rule in RULES:
            with tempfile.TemporaryDirectory() as place:
                run = pruned_run(model, target, fitted, Path(place) / "run", score_queries=rule)
                engine = Engine.load(run, device="cpu", dtype="bf16")
                found = engine.predict_arrays(pairs)
            lengths, kept = (torch.from_numpy(part).long() for part in (dense.kept[:, 0], found.kept))
            scores = [part.values.astype(np.float64) for part in (dense, found)]
            rows.append(
                {
                    "model": model.name,
                    "score_queries": rule,
                    "target": target,
                    "pairs": len(pairs),
                    "queries": len(names),
                    "tokens": float(lengths.double().mean()),
                    "relative_flops": float(relative_flops(engine.executor.shape, lengths, kept)),
                    **{f"dense_{name}": value for name, value in mean_by_query(scores[0], labels, groups).items()},
                    **{f"pruned_{name}": value for name, value in mean_by_query(scores[1], labels, groups).items()},
                    **order_agreement(scores[1], scores[0], groups),
                    "correlation": float(np.corrcoef(scores)[0, 1]),
                    **made_by("queries_free.py"),
                }
            )
            print(rows[-1], flush=True)
    return rows


def table(rows: list[Row]) -> str:
    heads = ["whose attention", "FLOPs", "nDCG@10, dense", "pruned", "order as dense", "scores as dense"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        ndcg = f"{row['dense_ndcg@10']:.3f} | {row['pruned_ndcg@10']:.3f}"
        alike = f"{row['spearman']:.3f} | {row['correlation']:.3f}"
        lines.append(f"| {queries_in_words(row['score_queries'])} | {row['relative_flops']:.3f} | {ndcg} | {alike} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="measure this one; without it, only the table is made anew")
    parser.add_argument("--rows", type=Path, help="as reranker_rows prepares them for a test")
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=25, help="of each query, the first ones")
    parser.add_argument("--targets", default="0.8,0.6")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.model is not None:
        by_query = [list(rows) for _, rows in groupby(rows_in(options.rows), key=lambda row: row["group"])]
        judged = [row for rows in by_query[: options.queries] for row in rows[: options.candidates]]
        others = list(islice((row for rows in by_query[options.queries :] for row in rows), FITTED))
        targets = [float(word) for word in options.targets.split(",")]
        rows = measured(options.model, judged, others, targets)
        keep_rows(options.out, rows, key=lambda row: (row["model"], row["target"], row["score_queries"]))
    write_between_marks("without-training", table(read_rows(options.out)), PAGE)


if __name__ == "__main__":
    main()
