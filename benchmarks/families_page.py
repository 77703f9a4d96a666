"""The tables of families.md, from cpu/ and gpu/ families.jsonl, before_after.jsonl, the same of other shapes or later
sources, and gpu/pretrain.jsonl.

python benchmarks/families_page.py
"""

from measuring import HERE, RESULTS, Row, read_rows, write_between_marks

PAGE = HERE / "families.md"
FOLDERS = {"gpu": HERE / "gpu", "cpu": RESULTS}
SHAPES = {
    "roberta": "RoBERTa-base",
    "nomic": "NomicBERT",
    "modernbert": "ModernBERT-base",
    "deberta-v3": "DeBERTa-v3-base",
}
LENGTHS = {"sst2": "28 tokens, 5 to 72", "qnli": "50 tokens, 10 to 128", "512 tokens": "512 tokens"}
RIVALS = ("stock, padded", "unpadded, plain torch", "disentangled-flash")
NOTHING = "-"


def rows_of(name: str, kind: str) -> list[Row]:
    file = FOLDERS[kind] / f"{name}.jsonl"
    return read_rows(file) if file.is_file() else []


def speed(rows: list[Row]) -> str:
    """A line for each shape and length; the last record of each way counts."""
    last = {(row["shape"], row["lengths"], row["engine"]): row for row in rows}
    rivals = [name for name in RIVALS if any(name == row["engine"] and "refused" not in row for row in rows)]
    head = ["texts/s", "texts", *rivals, "thresher dense", "**thresher pruned**", "over own dense", "FLOPs"]
    lines = [[*head, "FLOPs ratio reached", "dense, TFLOP/s", "of RoBERTa's"]]
    for shape, lengths in dict.fromkeys((row["shape"], row["lengths"]) for row in rows):
        dense, pruned = (last.get((shape, lengths, f"thresher {kind}"), {}) for kind in ("dense", "pruned"))
        cells = [per_second(last.get((shape, lengths, name), {})) for name in rivals]
        cells += [per_second(dense), per_second(pruned)]
        if "texts_per_second" in dense and "texts_per_second" in pruned:
            gain = pruned["texts_per_second"] / dense["texts_per_second"]
            cells += [f"{gain:.2f}x", f"{pruned['relative_flops']:.2f}", f"{gain * pruned['relative_flops']:.1%}"]
        else:
            cells += [NOTHING] * 3
        own = dense.get("teraflops_per_second")
        other = last.get(("roberta", lengths, "thresher dense"), {}).get("teraflops_per_second")
        cells += [f"{own:.3g}" if own else NOTHING, f"{own / other:.1%}" if own and other else NOTHING]
        lines.append([SHAPES[shape], LENGTHS[lengths], *cells])
    return table(lines)


def per_second(row: Row) -> str:
    """Texts, to three digits; how many tokens they have is the line's."""
    value = row.get("texts_per_second")
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def refusals(rows: list[Row]) -> str:
    """What could not be measured, in its own words, once for all lengths."""
    last = {(row["shape"], row["lengths"], row["engine"]): row for row in rows}
    said = {(row["shape"], row["engine"], row["refused"]) for row in last.values() if "refused" in row}
    return "\n".join(f"- {SHAPES[shape]}, {engine}: {why}" for shape, engine, why in sorted(said)) or "- nothing"


def before_after(kinds: dict[str, list[Row]]) -> str:
    """The last record of each line counts; early ones, all of RoBERTa, do not say of which shape they are, nor of which
    commit the old sources."""
    lines = [["on", "model", "engine", "texts", "lengths", "sources", "before, ms", "after, ms", "after over before"]]
    for rows in kinds.values():
        last = {line_of(row): row for row in rows}
        for (shape, engine, dtype, texts, lengths), row in last.items():
            times = [f"{row[name]:.3g}" for name in ("old_ms", "new_ms")]
            what = [row["device"], SHAPES[shape], f"{engine}, {dtype}", str(texts), LENGTHS[lengths]]
            sources = f"{row['old_commit'][:7] if 'old_commit' in row else 'not said'}, {row['commit'][:7]}"
            lines.append([*what, sources, *times, f"{row['speedup']:.3f}x"])
    return table(lines)


def line_of(row: Row) -> tuple[str, str, str, int, str]:
    return row.get("shape", "roberta"), row["engine"], row["dtype"], row["texts"], row["lengths"]


def pretrained(rows: list[Row]) -> str:
    lines = [["model", "minutes", "steps", "hidden words found", "by the commonest word", "loss"]]
    for row in {row["kind"]: row for row in rows}.values():
        shares = [f"{row['accuracy']:.1%}", f"{row['commonest']:.1%}"]
        lines.append([f"{row['kind']}-small", f"{row['minutes']:g}", str(row["steps"]), *shares, f"{row['loss']:.2f}"])
    return table(lines)


def table(lines: list[list[str]]) -> str:
    head, *rest = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])


def main() -> None:
    for kind in FOLDERS:
        if rows := rows_of("families", kind):
            write_between_marks(f"speed-{kind}", speed(rows), PAGE)
            write_between_marks(f"refused-{kind}", refusals(rows), PAGE)
    if rows := rows_of("families_distances", "gpu"):
        write_between_marks("speed-gpu-distances", speed(rows), PAGE)
    sides = {kind: found for kind in FOLDERS if (found := rows_of("before_after", kind))}
    if sides:
        write_between_marks("before-after", before_after(sides), PAGE)
    if rows := rows_of("families_before_after", "cpu"):
        write_between_marks("before-after-cpu", before_after({"cpu": rows}), PAGE)
    if rows := rows_of("pretrain", "gpu"):
        write_between_marks("pretrained", pretrained(rows), PAGE)


if __name__ == "__main__":
    main()
