"""Tables from what `thresher bench --record` wrote, into benchmarks/README.md, gpu/README.md and docs/speed.md.

python benchmarks/results.py
"""

from pathlib import Path

from measuring import HERE, RESULTS, Row, read_rows, threads_of, write_between_marks

FILE = RESULTS / "results.jsonl"
# Records of other heads than classes: the mark is the file's name.
HEADS = {
    RESULTS / "reranker.jsonl": HERE / "README.md",
    RESULTS / "embedder.jsonl": HERE / "README.md",
    RESULTS / "answers.jsonl": HERE / "README.md",
    HERE / "gpu" / "reranker.jsonl": HERE / "gpu" / "README.md",
}
NAMES = {
    "hugging face": "Hugging Face",
    "hugging face eager": "Hugging Face, eager attention",
    "sentence transformers": "sentence-transformers",
    "torch unpadded": "torch, unpadded",
    "onnxruntime": "onnxruntime",
    "openvino": "OpenVINO",
    "thresher dense": "thresher, dense",
    "thresher pruned": "**thresher, pruned**",
    "thresher export dense, onnxruntime": "thresher, dense, exported to onnxruntime",
    "thresher export pruned, onnxruntime": "thresher, pruned, exported to onnxruntime",
    "thresher export dense, openvino": "thresher, dense, exported to OpenVINO",
    "thresher export pruned, openvino": "thresher, pruned, exported to OpenVINO",
}
# What a reader of docs/speed.md wants to compare; all rows are in benchmarks/README.md.
FRONT = [
    ("hugging face", "fp32"),
    ("hugging face, sorted", "bf16"),
    ("onnxruntime, sorted", "int8"),
    ("openvino", "int8"),
    ("openvino, sorted", "int8"),
    ("thresher dense", "bf16"),
    ("thresher pruned", "bf16"),
    ("thresher dense", "int8-static"),
    ("thresher pruned", "int8-static"),
]


def latest() -> list[Row]:
    """The newest record of every run."""
    return list({record["run"]: record for record in read_rows(FILE)}.values())


def full_name(row: Row) -> str:
    engine, _, order = row["engine"].partition(", ")
    return f"{NAMES[engine]}, {row['dtype']}{', texts sorted by length' if order else ''}"


def title(record: Row) -> str:
    texts = f"{record['texts']} {record['task']} texts of {record['mean_length']:.0f} tokens on average"
    return f"`{record['run']}`: {texts}, batch {record['batch_size']}, {threads_of(record)}"


def best_int8_rival(record: Row) -> float:
    """Texts per second of the fastest int8 rival, which gets its texts sorted."""
    rivals = [row for row in record["rows"] if row["dtype"] == "int8" and not row["engine"].startswith("thresher")]
    return max((row["texts_per_s"] for row in rivals), default=float("nan"))


def loose(row: Row) -> str:
    """The mark of a rate that did not settle; older records do not say."""
    return "" if row.get("settled", True) else "~"


def whole_table(record: Row) -> str:
    head = "texts/s | over HF fp32 | over the best int8 rival | p50 ms | p95 ms | score | agreement | FLOPs | MiB"
    lines = [f"| {title(record)} | {head} |", "|" + "---|" * 10]
    for row in record["rows"]:
        ratios = f"{row['ratio_hugging_face']:.2f} | {row['texts_per_s'] / best_int8_rival(record):.2f}"
        times = f"{row['latency_ms_p50']:.1f} | {row['latency_ms_p95']:.1f}"
        quality = f"{100 * row['quality']:.2f} | {100 * row['agreement']:.1f} | {row['relative_flops']:.2f}"
        memory = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        lines.append(
            f"| {full_name(row)} | {row['texts_per_s']:.1f}{loose(row)} | {ratios} | {times} | {quality} | {memory} |"
        )
    verdict = record["verdict"]
    said = f"Pruned is {verdict['speedup']:.2f}x faster than dense in {verdict['dtype']}"
    return "\n".join([*lines, "", f"{said}; the engine computes {verdict['flops_ratio']:.2f}x fewer FLOPs."])


def front_table(records: list[Row]) -> str:
    heads = [f"{record['task']}, {record['mean_length']:.0f} tokens: texts/s | ms for one text" for record in records]
    lines = ["| | " + " | ".join(heads) + " |", "|" + "---|" * (1 + 2 * len(records))]
    for key in FRONT:
        rows = [next(row for row in record["rows"] if (row["engine"], row["dtype"]) == key) for record in records]
        cells = []
        for record, row in zip(records, rows, strict=True):
            ratio = row["texts_per_s"] / best_int8_rival(record)
            cells.append(f"{row['texts_per_s']:.0f}{loose(row)} ({ratio:.2f}x) | {row['latency_ms_p50']:.0f}")
        lines.append(f"| {full_name(rows[0])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def head_table(record: Row) -> str:
    """A line for every engine and arithmetic, with texts in their order and sorted by length side by side."""
    lines = ["| texts/s | in their order | sorted by length | one text, ms | agreement |", "|" + "---|" * 5]
    in_order = {key_of(row): row for row in record["rows"] if not row["engine"].endswith(", sorted")}
    by_length = {key_of(row): row for row in record["rows"] if row["engine"].endswith(", sorted")}
    for key, row in in_order.items():
        mode = f", {row['mode']}" if row.get("mode") else ""
        other = f"{by_length[key]['texts_per_s']:,.1f}{loose(by_length[key])}" if key in by_length else ""
        numbers = (
            f"{row['texts_per_s']:,.1f}{loose(row)} | {other} | {row['latency_ms_p50']:.2f} | {row['agreement']:.3f}"
        )
        lines.append(f"| {NAMES[key[0]]}, {row['dtype']}{mode} | {numbers} |")
    verdict = record["verdict"]
    said = f"Pruned is {verdict['speedup']:.2f}x faster than dense in {verdict['dtype']}"
    ratio = f"the engine computes {verdict['flops_ratio']:.2f}x fewer FLOPs"
    return "\n".join([*lines, "", f"{said}; {ratio}."])


def key_of(row: Row) -> tuple[str, ...]:
    return row["engine"].removesuffix(", sorted"), row["dtype"], row.get("mode") or ""


if __name__ == "__main__":
    records = latest()
    write_between_marks("results", "\n\n".join(whole_table(record) for record in records))
    base_size = [record for record in records if "mpnet" in Path(record["run"]).name]
    write_between_marks("speed", front_table(base_size), HERE.parent / "docs" / "speed.md")
    for file, page in HEADS.items():
        write_between_marks(file.stem, head_table(read_rows(file)[-1]), page)
