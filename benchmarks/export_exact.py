"""Whether an exported graph is the engine's model on whole files of texts: outputs, and kept counts text by text.

python benchmarks/export_exact.py --run FOLDER --texts FILE.jsonl [--skip 0] [--rows 2000] [--int8]

In fp32 it is the check of `thresher export` against the reference, with 32 texts at a time: together and alone, padded
on either side. One that differs is an error; texts with a score within 1e-5 of its threshold are counted, because the
last digits decide there. With --int8, of a quantized run: how many texts get the same label as from the engine in
int8-static, and how many keep the same in every layer, and get the same label, alone as among 32. A long file can be
done in parts, with --skip; each has its record, and the page adds them up.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fitted_run import read_texts
from measuring import HERE, Row, keep_rows, made_by, shown

from thresher.engine.arithmetic import STATIC
from thresher.engine.engine import Engine
from thresher.engine.find_scales import Text
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.graphs.opened import open_file
from thresher.engine.scales import read_scales
from thresher.engine.weights import read_weights
from thresher.evaluation.int8 import Compute, computed_by
from thresher.exporting.check import TOLERANCE, check_opened
from thresher.exporting.folder import takes_types, write_graph
from thresher.jobs.export_quality import computed_in
from thresher.models.checkpoint import Checkpoint, load
from thresher.models.heads import head_of
from thresher.models.plan import plan_of
from thresher.quiet import quiet_libraries

FOLDER = HERE / "export"
TOGETHER = 32


def exact(checkpoint: Checkpoint, texts: Sequence[Text], folder: Path) -> Row:
    """The graph in fp32 against the reference; the first text that differs is an error."""
    model = checkpoint.model
    weights, plan = read_weights(model), plan_of(model)
    form = Form(types=takes_types(weights, checkpoint.tokenizer), kept=True)
    file = folder / "model.onnx"
    write_graph(build_model(weights, plan, form=form, means=head_of(model).means), file)
    graph = open_file(file, threads=torch.get_num_threads())
    found = [check_opened(graph, weights, {1.0: plan}, form=form, texts=part, counts=graph) for part in parts_of(texts)]
    return {
        "largest_difference": max(each.largest_difference for each in found),
        "allowed": TOLERANCE,
        "largest_output": max(each.largest_output for each in found),
        "at_a_threshold": sum(each.at_a_threshold for each in found),
    }


def in_int8(checkpoint: Checkpoint, texts: Sequence[Text], folder: Path, run: Path) -> Row:
    """The graph in int8 against the engine in the same arithmetic, and against itself on single texts."""
    model, scales = checkpoint.model, read_scales(run)
    weights = read_weights(model)
    form = Form(types=takes_types(weights, checkpoint.tokenizer), kept=True)
    file = folder / "model.onnx"
    write_graph(build_model(weights, plan_of(model), form=form, means=head_of(model).means, scales=scales), file)
    graph = computed_in(file, types=form.types)
    engine = computed_by(
        Engine.from_model(model, checkpoint.tokenizer, backend="cpu", dtype=STATIC, scales=scales, workers=0).executor
    )
    ours, together, alone = (
        decided(engine, parts_of(texts)),
        decided(graph, parts_of(texts)),
        decided(graph, [[text] for text in texts]),
    )
    return {
        "same_label_as_the_engine": float(np.mean(together[0] == ours[0])),
        "same_counts_as_the_engine": alike(together[1], ours[1]),
        "same_label_alone": float(np.mean(together[0] == alone[0])),
        "same_counts_alone": alike(together[1], alone[1]),
    }


def parts_of(texts: Sequence[Text]) -> list[Sequence[Text]]:
    return [texts[start : start + TOGETHER] for start in range(0, len(texts), TOGETHER)]


def decided(compute: Compute, parts: Sequence[Sequence[Text]]) -> tuple[Any, Any]:
    """Labels (texts,) and kept counts (texts, layers)."""
    found = [compute(part) for part in parts]
    return np.concatenate([logits for logits, _ in found]).argmax(axis=1), np.concatenate([kept for _, kept in found])


def alike(counts: Any, others: Any) -> float:
    """The share of texts of which every layer keeps as many tokens."""
    return float(np.mean((counts == others).all(axis=1)))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    quiet_libraries()
    checkpoint = load(options.run)
    tokenizer, limit = checkpoint.tokenizer, read_weights(checkpoint.model).positions
    if options.int8 and head_of(checkpoint.model).means != "classes":
        raise SystemExit(f"{options.run} gives no classes, and --int8 compares labels")
    read = [
        tokenizer(text, pair, truncation=True, max_length=limit)
        for text, pair in read_texts(options.texts, options.skip + options.rows)[options.skip :]
    ]
    texts = [(list(row["input_ids"]), row.get("token_type_ids")) for row in read]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = in_int8(checkpoint, texts, folder, options.run) if options.int8 else exact(checkpoint, texts, folder)
    about = {"model": shown(options.run), "texts": shown(options.texts), "skipped": options.skip, "rows": len(texts)}
    print(f"{len(texts)} texts: " + ", ".join(f"{name} {value:.6g}" for name, value in found.items()))
    row = {**about, **found, "trained": "fitted" not in checkpoint.manifest, **made_by("export_exact.py")}
    file = options.out or FOLDER / ("exactness_int8.jsonl" if options.int8 else "exactness.jsonl")
    keep_rows(file, [row], lambda row: (row["device"], row["model"], row["texts"], row["skipped"]))


if __name__ == "__main__":
    main()
