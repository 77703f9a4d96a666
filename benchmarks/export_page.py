"""The tables of benchmarks/export/README.md, from its records: python benchmarks/export_page.py"""

from measuring import HERE, Row, read_rows, write_between_marks

FOLDER = HERE / "export"
PAGE = FOLDER / "README.md"
RUNTIMES = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"}


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
    for row in rows:
        numbers = [f"{row['rows']:,}", f"{row['largest_difference']:.1e}", str(row["at_a_threshold"])]
        lines.append([row["model"], row["texts"], *numbers])
    return table(lines)


def table(lines: list[list[str]]) -> str:
    head, *rest = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])


TABLES = {"results": ratios, "one_text": one_text, "exactness": exactness}


def main() -> None:
    for name, made in TABLES.items():
        rows = read_rows(FOLDER / f"{name}.jsonl")
        if rows:
            write_between_marks(name, made(rows), PAGE)


if __name__ == "__main__":
    main()
