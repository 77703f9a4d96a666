"""Whether an exported graph is the engine's reference on whole files of texts: outputs, and kept counts text by text.

python benchmarks/export_exact.py --run FOLDER --texts FILE.jsonl [--rows 2000]

The check of `thresher export`, with 32 texts at a time: together and alone, padded on either side. One that differs is
an error; texts with a score within 1e-5 of its threshold are counted, because the last digits decide there.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fitted_run import read_texts
from measuring import HERE, keep_rows, made_by, shown

from thresher.engine.graphs.build import Form, build_model
from thresher.engine.weights import read_weights
from thresher.exporting.check import TOLERANCE, check_file
from thresher.exporting.folder import takes_types, write_graph
from thresher.models.checkpoint import load
from thresher.models.heads import head_of
from thresher.models.plan import plan_of
from thresher.quiet import quiet_libraries

FILE = HERE / "export" / "exactness.jsonl"
TOGETHER = 32


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(words)
    quiet_libraries()
    checkpoint = load(options.run)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    weights, plan = read_weights(model), plan_of(model)
    form = Form(types=takes_types(weights, tokenizer), kept=True)
    read = [
        tokenizer(text, pair, truncation=True, max_length=weights.positions)
        for text, pair in read_texts(options.texts, options.rows)
    ]
    texts = [(list(row["input_ids"]), row.get("token_type_ids")) for row in read]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_graph(build_model(weights, plan, form=form, means=head_of(model).means), file)
        parts = [texts[start : start + TOGETHER] for start in range(0, len(texts), TOGETHER)]
        found = [check_file(file, weights, {1.0: plan}, form=form, texts=part, counting=file) for part in parts]
    row = {
        "model": shown(options.run),
        "texts": shown(options.texts),
        "rows": len(texts),
        "largest_difference": max(each.largest_difference for each in found),
        "allowed": TOLERANCE,
        "largest_output": max(each.largest_output for each in found),
        "at_a_threshold": sum(each.at_a_threshold for each in found),
        **made_by("export_exact.py"),
    }
    print(f"{row['rows']} texts: within {row['largest_difference']:.2g}, {row['at_a_threshold']} at a threshold")
    keep_rows(options.out, [row], lambda row: (row["device"], row["model"], row["texts"]))


if __name__ == "__main__":
    main()
