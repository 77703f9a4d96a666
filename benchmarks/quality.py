"""What pruning, static int8 and fp8 cost on whole validation sets, from runs that `thresher quantize` wrote.

python benchmarks/quality.py [--run FOLDER]
"""

from pathlib import Path

from measuring import RESULTS, Row, keep_rows, read_rows, run_options, shown, shown_words, write_between_marks

from thresher.errors import RunError
from thresher.models.checkpoint import read_manifest

FILE = RESULTS / "quality.jsonl"
HERE = {"fp32": "here, fp32", "int8-static": "here, int8-static", "fp8": "fp8's twin"}  # arithmetics in the table
BITS = {"fp16": 16 * 16, "int8": 8 * 8}  # of the two factors of a product


def read(run: Path) -> Row:
    """The run's own record of its quality: dense and pruned where it was trained, int8 where it was quantized."""
    manifest = read_manifest(run)
    if "quantization" not in manifest:
        raise RunError(f"{run} is not quantized; thresher quantize {run} --out FOLDER makes a run that is")
    block, recipe, trained = manifest["quantization"], manifest["recipe"], manifest["provenance"]
    quality = block["quality"]
    whole = manifest["quality"][quality["split"]]
    return {
        "run": shown(run),
        "task": manifest["task"]["name"],
        "split": quality["split"],
        "rows": quality["rows"],
        "method": recipe["method"],
        "dense": whole["dense"]["metrics"]["score"],
        "pruned": whole["pruned"]["metrics"]["score"],
        "relative_flops": whole["pruned"]["relative_flops"],
        "relative_bit_operations": whole["pruned"]["relative_flops"] * BITS["int8"] / BITS["fp16"],
        # A processor without int8 measures fp8 alone, and runs of older versions know no fp8.
        **{name: quality[name]["metrics"]["score"] if name in quality else None for name in HERE},
        "agreement": quality["agreement"],
        "calibration": block["calibration"],
        "trained": {**trained, "command": " ".join(shown_words(trained["command"].split()))},
        **block["provenance"],
        "command": " ".join(shown_words(block["provenance"]["command"].split())),
    }


def table() -> str:
    rows = read_rows(FILE)
    known = {name: said for name, said in HERE.items() if any(row.get(name) is not None for row in rows)}
    heads = ["run", "rows", "dense", "pruned", *known.values(), "same decisions", "FLOPs", "bit operations"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        found = [row.get(name) for name in ("dense", "pruned", *known)]
        scores = " | ".join("" if score is None else f"{100 * score:.2f}" for score in found)
        cost = f"{row['relative_flops']:.2f} | {1 / row['relative_bit_operations']:.1f}x fewer"
        lines.append(f"| {row['run']} | {row['rows']:,} | {scores} | {100 * row['agreement']:.1f}% | {cost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    options = run_options(__doc__)
    if options.run:
        keep_rows(FILE, [read(options.run)], lambda row: row["run"])
    write_between_marks("quality", table())
