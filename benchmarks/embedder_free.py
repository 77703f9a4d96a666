"""An embedder pruned without training, to shares of its FLOPs: what stays of its embeddings and of STS-B.

    python benchmarks/embedder_free.py MODEL --data DIR [--prompt "classification: "] [--targets 0.8,0.6]

MODEL is a folder of sentence-transformers, or an encoder, which then reads the mean of its tokens. Thresholds are
fitted on sentences of STS-B's training rows, whose similarities are not read; judged are the validation rows: the
correlation of cosines with similarities, and the cosine of each embedding with the dense one.
"""

import argparse
import json
import lzma
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from measuring import HERE, Row, keep_rows, made_by, read_rows, write_between_marks

from thresher.core.cost import relative_flops
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.jobs.calibrate import calibrate
from thresher.models.sentence_folder import is_embedder
from thresher.models.stored import Stored, write_folder
from thresher.tasks.metrics import correlation, cosines, pair_cosines

OUT, PAGE = HERE / "cpu" / "embedder_free.jsonl", HERE / "families.md"
FITTED = 512  # texts, of which half judge; those of the test are further ones


def rows_in(data: Path, part: str) -> list[Row]:
    with lzma.open(data / "stsb" / f"{part}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def sentences(rows: list[Row]) -> list[str]:
    """Text, pair, text, pair, ..."""
    return [" ".join(row[name].split()) for row in rows for name in ("sentence1", "sentence2")]


def as_embedder(model: Path, work: Path) -> Path:
    """The folder itself, or a copy that says that the mean of all tokens is the embedding."""
    if is_embedder(str(model)):
        return model
    folder = work / model.name
    shutil.copytree(model, folder)
    width = json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    write_folder(folder, Stored(Head(reads="mean", means="embedding", normalised=True)), width=width)
    return folder


def measured(model: Path, name: str, data: Path, prompt: str, targets: list[float]) -> list[Row]:
    test = rows_in(data, "validation")
    texts = [prompt + text for text in sentences(test)]
    similar, rows = np.array([row["label"] for row in test], dtype=np.float64), []
    dense = Engine.load(model, device="cpu").predict_arrays(texts)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        unlabelled = dict.fromkeys(prompt + text for text in sentences(rows_in(data, "train")))
        (work / "texts.txt").write_text("\n".join(unlabelled) + "\n", encoding="utf-8")
        for target in targets:
            out = work / f"{target:g}"
            expected = calibrate(model, texts=work / "texts.txt", out=out, target_flops=target, rows=FITTED).expected
            pruned = Engine.load(out, device="cpu")
            found = pruned.predict_arrays(texts)
            lengths, kept = (torch.from_numpy(part).long() for part in (dense.kept[:, 0], found.kept))
            both = [correlation("spearman", pair_cosines(part.outputs), similar) for part in (dense, found)]
            rows.append(
                {
                    "model": name,
                    "prompt": prompt,
                    "target": target,
                    "judged_cosine": expected.agreement.value,
                    "tokens": float(lengths.double().mean()),
                    "relative_flops": float(relative_flops(pruned.executor.shape, lengths, kept)),
                    "dense": 100 * both[0],
                    "pruned": 100 * both[1],
                    "cosine": float(cosines(found.outputs, dense.outputs).mean()),
                    "dtype": pruned.describe()["dtype"],
                    **made_by("embedder_free.py"),
                }
            )
            print(rows[-1], flush=True)
    return rows


def table(rows: list[Row]) -> str:
    lines = ["| model | FLOPs | STS-B, dense | pruned | difference | cosine with dense |", "|---|---|---|---|---|---|"]
    for row in rows:
        scores = f"{row['dense']:.2f} | {row['pruned']:.2f} | {row['pruned'] - row['dense']:+.2f}"
        lines.append(f"| {row['model']} | {row['relative_flops']:.2f} | {scores} | {row['cosine']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="measure this one; without it, only the table is made anew")
    parser.add_argument("--data", type=Path, help="folder with stsb")
    parser.add_argument("--prompt", default="", help="stands before every text")
    parser.add_argument("--targets", default="0.8,0.6")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.model is not None:
        targets = [float(word) for word in options.targets.split(",")]
        with tempfile.TemporaryDirectory() as work:
            model = as_embedder(options.model, Path(work))
            rows = measured(model, options.model.name, options.data, options.prompt, targets)
        keep_rows(options.out, rows, key=lambda row: (row["model"], row["target"]))
    write_between_marks("embedder-free", table(read_rows(options.out)), options.page)


if __name__ == "__main__":
    main()
