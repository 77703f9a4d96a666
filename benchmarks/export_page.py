"""The tables of benchmarks/export/README.md, from its records: python benchmarks/export_page.py"""

from measuring import HERE, Row, read_rows, write_between_marks

FOLDER = HERE / "export"
PAGE = FOLDER / "README.md"
RUNTIMES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO", "onnxruntime-web": "Chromium"}


def ratios(rows: list[Row]) -> str:
    """FLOPs ratio reached: what pruning gains over our own dense graph, as a share of what the FLOPs promise."""
    head = ["model", "runtime", "dtype", "batch", "tokens", "over stock", "over own dense", "FLOPs"]
    lines = [[*head, "FLOPs ratio reached", "stock, ms", "pruned, ms"]]
    for row in sorted(rows, key=lambda row: (row["model"], row["batch"], row["runtime"], row["dtype"], row["tokens"])):
        reached = row["pruned_over_own_dense"] * row["relative_flops"]
        lines.append(
            [
                *(row["model"], RUNTIMES[row["runtime"]], row["dtype"], str(row["batch"]), str(row["tokens"])),
                *(f"{row['pruned_over_stock']:.2f}x", f"{row['pruned_over_own_dense']:.2f}x"),
                *(f"{row['relative_flops']:.2f}", f"{reached:.0%}"),
                *(f"{row['milliseconds'][name]:.2f}" for name in ("stock", "pruned")),
            ]
        )
    return table(lines)


def one_text(rows: list[Row]) -> str:
    """Milliseconds, the way that is fastest first in the first model."""
    names = sorted(rows[0]["p50"], key=rows[0]["p50"].__getitem__)
    lines = [["p50 in ms", *(f"{row['model']}, {row['median_tokens']:.0f} tokens" for row in rows)]]
    lines += [[name, *(f"{row['p50'][name]:.2f}" for row in rows)] for name in names]
    return table(lines)


def exactness(rows: list[Row]) -> str:
    lines = [["run", "texts", "rows", "largest difference", "scores at a threshold"]]
    for parts in whole_files(rows):
        found = max(row["largest_difference"] for row in parts)
        numbers = [f"{found:.1e}", str(sum(row["at_a_threshold"] for row in parts))]
        lines.append([parts[0]["model"], parts[0]["texts"], f"{sum(row['rows'] for row in parts):,}", *numbers])
    return table(lines)


def exactness_int8(rows: list[Row]) -> str:
    """Shares over all rows of a file."""
    names = {
        "same_label_as_the_engine": "label of the engine",
        "same_counts_as_the_engine": "counts of the engine",
        "same_label_alone": "label alone",
        "same_counts_alone": "counts alone",
    }
    lines = [["run", "texts", "rows", *names.values()]]
    for parts in whole_files(rows):
        total = sum(row["rows"] for row in parts)
        shares = [sum(row[name] * row["rows"] for row in parts) / total for name in names]
        lines.append([parts[0]["model"], parts[0]["texts"], f"{total:,}", *(f"{share:.2%}" for share in shares)])
    return table(lines)


def whole_files(rows: list[Row]) -> list[list[Row]]:
    """The records of a run on a file together, in the order in which runs and files first come."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["texts"]), []).append(row)
    return list(found.values())


def table(lines: list[list[str]]) -> str:
    head, *rest = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])


TABLES = {"results": ratios, "one_text": one_text, "exactness": exactness, "exactness_int8": exactness_int8}


def main() -> None:
    for name, made in TABLES.items():
        rows = read_rows(FOLDER / f"{name}.jsonl")
        if rows:
            write_between_marks(name, made(rows), PAGE)


if __name__ == "__main__":
    main()
