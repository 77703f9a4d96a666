"""Figures and tables of benchmarks/gpu/README.md from the records beside it; needs no GPU.

python benchmarks/gpu/report.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from measuring import Row, label_ends, log_ticks, plotting, read_rows, save_figure, write_between_marks  # noqa: E402

RECORDS, DECISIONS, PAGE = HERE / "results.jsonl", HERE / "decisions.jsonl", HERE / "README.md"
LENGTHS = {"qnli": "QNLI lengths (mean 52)", "sst2": "SST-2 lengths (mean 28)", "squad": "SQuAD lengths (mean 162)"}
OURS = ("thresher-dense", "thresher-pruned")
NAMES = {
    ("hf-eager", "padded"): "Hugging Face eager, padded",
    ("hf-sdpa", "padded"): "Hugging Face SDPA, padded",
    ("hf-sdpa", "sorted"): "Hugging Face SDPA, sorted, four batches",
    ("hf-compile", "padded"): "Hugging Face torch.compile, padded",
    ("torch-unpadded", "dense"): "torch, unpadded, varlen attention",
    ("thresher-dense", "sync"): "thresher dense, sync",
    ("thresher-dense", "graph"): "thresher dense, graph",
    ("thresher-pruned", "sync"): "**thresher pruned, sync**",
    ("thresher-pruned", "graph"): "**thresher pruned, graph**",
}
LINES = {
    ("hf-sdpa", "padded"): ("HF SDPA", "#999999", ":"),
    ("hf-sdpa", "sorted"): ("HF sorted", "#999999", "--"),
    ("hf-compile", "padded"): ("HF compile", "#b07aa1", ""),
    ("torch-unpadded", "dense"): ("torch unpadded", "#4e79a7", ":"),
    ("thresher-dense", ""): ("thresher dense", "#f28e2b", "--"),
    ("thresher-pruned", ""): ("thresher pruned", "#d1495b", "-"),
}


def measured(bench: str) -> list[Row]:
    """The newest row of every measurement of a kind."""
    rows = [row for row in read_rows(RECORDS) if row["bench"] == bench and "ms_p50" in row]
    keys = ("engine", "mode", "dtype", "lengths", "batch")
    return list({tuple(row[key] for key in keys): row for row in rows}.values())


def one(rows: Sequence[Row], engine: str, *, lengths: str, batch: int, mode: str | None = None) -> Row:
    """The row of an engine; ours in the faster of the two modes, unless one is asked for."""
    found = [
        row
        for row in rows
        if (row["engine"], row["lengths"], row["batch"]) == (engine, lengths, batch) and mode in (None, row["mode"])
    ]
    return min(found, key=lambda row: row["ms_p50"])


def targets() -> str:
    rows, kernels = measured("engines"), measured("kernels")
    dense, pruned, padded, compiled = (
        one(rows, name, lengths="qnli", batch=256, mode=mode)
        for name, mode in ((OURS[0], None), (OURS[1], None), ("hf-sdpa", "padded"), ("hf-compile", None))
    )
    single, single_dense, single_compiled = (
        one(rows, name, lengths="qnli", batch=1) for name in (OURS[1], OURS[0], "hf-compile")
    )
    speedup, saved = dense["ms_p50"] / pruned["ms_p50"], 1 / pruned["engine_relative_flops"]
    lines = ["| | target | measured |", "|---|---|---|"]

    def line(what: str, target: str, found: str, met: bool) -> None:
        lines.append(f"| {what} | {target} | {found}{'' if met else ' (missed)'} |")

    line(
        "batch 256, QNLI lengths, pruned against our dense engine: share of the FLOPs ratio",
        ">= 95%",
        f"{speedup / saved:.0%}: {speedup:.2f}x of {saved:.2f}x",
        speedup / saved >= 0.95,
    )
    for name, rival, least in (("Hugging Face SDPA, padded", padded, 6), ("torch.compile", compiled, 5)):
        ratio = rival["ms_p50"] / pruned["ms_p50"]
        found = f"{ratio:.1f}x ({rival['ms_p50']:.2f} ms / {pruned['ms_p50']:.2f} ms)"
        line(f"batch 256, pruned against {name}", f">= {least}x", found, ratio >= least)
    rate = dense["useful_tflops"]
    line("batch 256, dense engine, useful TFLOP/s", ">= 450", f"{rate:.0f}", rate >= 450)
    times = [row["ms_p50"] for row in (single, single_dense, single_compiled)]
    found = f"{times[0]:.2f} ms (our dense engine {times[1]:.2f}, torch.compile {times[2]:.2f})"
    line("batch 1, pruned", "<= 0.45 ms", found, times[0] <= 0.45)
    for length in (64, 128, 256, 512):
        share = score_cost(kernels, length)
        line(f"scores, share of a layer at {length} tokens", "<= 5%", f"{share:.1%}", share <= 0.05)
    return "\n".join(lines)


def score_cost(kernels: Sequence[Row], length: int) -> float:
    """What scores add to attention, over the time of a base-size layer at 500 TFLOP/s."""
    runs = [row for row in kernels if row["engine"] == "attention" and row["lengths"] == f"n={length}"]
    times = {row["mode"]: row["ms_p50"] for row in runs}
    tokens, width = runs[0]["batch"] * length, 768
    layer = 2 * (12 * tokens * width**2 + 2 * tokens * length * width) / 500e9
    return float((times["scored"] - times["plain"]) / layer)


def engines_table(lengths: str) -> str:
    rows = [row for row in measured("engines") if row["lengths"] == lengths]
    batches = sorted({row["batch"] for row in rows})
    found = {(row["engine"], row["mode"], row["batch"]): row for row in rows}
    lines = [f"| {LENGTHS[lengths]}, ms | " + " | ".join(f"batch {batch}" for batch in batches) + " |"]
    lines.append("|---" * (len(batches) + 1) + "|")
    for key, name in NAMES.items():
        cells = [f"{found[*key, b]['ms_p50']:.2f}" if (*key, b) in found else "" for b in batches]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def throughput_figure() -> None:
    rows, pyplot = measured("engines"), plotting()
    figure, panels = pyplot.subplots(1, 3, figsize=(14.5, 4.6), constrained_layout=True)
    for axes, (lengths, title) in zip(panels, LENGTHS.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ends = []
        here = [row for row in rows if row["lengths"] == lengths]
        for (engine, mode), (name, colour, style) in LINES.items():
            best: dict[int, Row] = {}
            for row in here:
                if row["engine"] == engine and mode in ("", row["mode"]):
                    best[row["batch"]] = min(best.get(row["batch"], row), row, key=lambda each: each["ms_p50"])
            if not best:
                continue
            x = sorted(best)
            y = [best[batch]["sequences_per_s"] for batch in x]
            axes.plot(x, y, color=colour, linestyle=style, marker="o" if style else "D", markersize=4)
            ends.append((x[-1], y[-1], name, colour))
        ticks = sorted({row["batch"] for row in here})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.minorticks_off()
        log_ticks(axes)
        label_ends(axes, ends, gap=0.065)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("texts per batch")
    panels[0].set_ylabel("texts per second")
    newest = rows[-1]
    figure.suptitle(f"Base-size encoder, {newest['dtype']}, {newest['device']}; ours in the faster mode", fontsize=11)
    save_figure(figure, HERE / "throughput")
    pyplot.close(figure)


def growth_figure() -> None:
    rows, pyplot = measured("growth"), plotting()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.2), constrained_layout=True)
    many = max(row["tokens"] for row in rows if row["lengths"] != "n=128")
    for axes, chosen, key in (
        (left, [row for row in rows if row["tokens"] == many], length_of),
        (right, [row for row in rows if row["lengths"] == "n=128"], weighted_tokens),
    ):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ends = []
        for engine, (name, colour, style) in ((e, LINES[e, ""]) for e in OURS):
            for mode, marker in (("graph", "o"), ("sync", "x")):
                line = sorted((row for row in chosen if (row["engine"], row["mode"]) == (engine, mode)), key=key)
                if line:
                    x, y = [key(row) for row in line], [row["ms_p50"] for row in line]
                    axes.plot(x, y, color=colour, linestyle=style, marker=marker, markersize=4)
                    ends.append((x[-1], y[-1], f"{name.removeprefix('thresher ')}, {mode}", colour))
        log_ticks(axes)
        label_ends(axes, ends)
    left.set_xticks([2**power for power in range(6, 13)], [str(2**power) for power in range(6, 13)])
    left.set_xlabel(f"tokens per text ({many:,} tokens in all)")
    right.set_xlabel("tokens times relative FLOPs (texts of 128 tokens)")
    left.set_ylabel("milliseconds per batch")
    save_figure(figure, HERE / "growth")
    pyplot.close(figure)


def length_of(row: Row) -> int:
    return int(row["lengths"].removeprefix("n="))


def weighted_tokens(row: Row) -> float:
    return float(row["tokens"] * row["engine_relative_flops"])


def kernels_table() -> str:
    rows = measured("kernels")
    lines = ["| kernel | size | way | us | TFLOP/s |", "|---|---|---|---|---|"]
    for row in rows:
        size = f"{row['batch']} x {row['lengths']}" if row["lengths"] else f"{row['batch']} rows"
        rate = f"{row['useful_tflops']:.0f}" if row["useful_tflops"] else ""
        lines.append(f"| {row['engine']} | {size} | {row['mode']} | {1000 * row['ms_p50']:.1f} | {rate} |")
    return "\n".join(lines)


def decisions_table() -> str:
    head = "run | dtype | mode | texts | same kept counts | same prediction | metric (reference) | nearest score"
    lines = [f"| {head} |", "|" + "---|" * 8]
    for row in read_rows(DECISIONS):
        metric = f"{100 * row['metric']['score']:.2f} ({100 * row['metric_of_reference']['score']:.2f})"
        counts = f"{row['texts']} | {row['same_kept_counts']} | {row['same_prediction']}"
        furthest = f"{row['furthest_from_threshold_where_other']:.1e}"
        lines.append(f"| {row['run']} | {row['dtype']} | {row['mode']} | {counts} | {metric} | {furthest} |")
    return "\n".join(lines)


def front_table() -> str:
    """For the front page: against the strongest unpadded rival at batch 256, and one text alone."""
    rows = measured("engines")
    names = ("hf-sdpa", "hf-compile", "torch-unpadded", *OURS)
    sizes = [("qnli", 256), ("squad", 256), ("qnli", 1)]
    heads = [f"{lengths} lengths, batch {batch}: texts/s" for lengths, batch in sizes[:2]] + ["one text, ms"]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name in names:
        mode = "padded" if name.startswith("hf") else None
        cells = []
        for lengths, batch in sizes:
            try:
                row = one(rows, name, lengths=lengths, batch=batch, mode=mode)
            except ValueError:  # torch.compile was measured at the targets' sizes only
                cells.append("")
                continue
            rival = one(rows, "torch-unpadded", lengths=lengths, batch=batch)
            ratio = rival["ms_p50"] / row["ms_p50"]
            cells.append(f"{row['ms_p50']:.2f}" if batch == 1 else f"{row['sequences_per_s']:,.0f} ({ratio:.2f}x)")
        shown = NAMES[(name, "graph") if name in OURS else (name, mode or "dense")].removesuffix(", graph")
        lines.append(f"| {shown.replace(', graph', '')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts() -> dict[str, Any]:
    """What stands between which marks of the page."""
    return {
        "targets": targets,
        "engines": lambda: "\n\n".join(engines_table(lengths) for lengths in LENGTHS),
        "kernels": kernels_table,
        "decisions": decisions_table,
    }


if __name__ == "__main__":
    throughput_figure()
    growth_figure()
    for mark, made in parts().items():
        write_between_marks(mark, made(), PAGE)
    write_between_marks("gpu", front_table(), HERE.parents[1] / "README.md")
