"""Figures and tables of benchmarks/gpu/README.md from the records beside it; needs no GPU.

python benchmarks/gpu/report.py
"""

import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from measuring import Row, label_ends, log_ticks, plotting, read_rows, save_figure, write_between_marks  # noqa: E402

from thresher.config import with_methods_today  # noqa: E402
from thresher.engine.kernels.tiles import RUNGS, Tiles  # noqa: E402

STUDY = HERE / "attention_study.jsonl"
RECORDS, DECISIONS, CHECKS = HERE / "results.jsonl", HERE / "decisions.jsonl", HERE / "checks.jsonl"
LONG = HERE / "long.jsonl"
OUT_OF_TIME = 124  # status of a part whose time was over
PAGE = HERE / "README.md"
LENGTHS = {"qnli": "QNLI lengths (mean 52)", "sst2": "SST-2 lengths (mean 28)", "squad": "SQuAD lengths (mean 162)"}
OURS = ("thresher-dense", "thresher-pruned")
# By the method whose trained model says how many tokens every layer keeps; the first is what users get.
PROFILES = {"thresher": "`thresher`, 0.46 of the FLOPs", "ltp": "`ltp`, 0.51"}
SHOWN = next(iter(PROFILES))
SCORED = {"thresher": "scored by value", "ltp": "scored"}  # as the method does
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


@functools.cache
def records() -> list[Row]:
    return read_rows(RECORDS)


def measured(bench: str, profile: str | None = None, lengths: str | None = None) -> list[Row]:
    """The newest row of every measurement of a kind. With a profile: of the tokens that this method's model keeps, and
    all of one call, the newest that ran our pruned engine on these lengths; times of two calls do not compare."""
    rows = [row for row in records() if row["bench"] == bench and "ms_p50" in row and row["dtype"] == "fp16"]
    if profile is not None:
        rows = [{**row, "engine": engine_of(row)} for row in rows if profile_of(row) == profile]
        calls = [row["created"] for row in rows if row["engine"] == OURS[1] and lengths in (None, row["lengths"])]
        rows = [row for row in rows if row["created"] == max(calls, default="")]
    keys = ("engine", "mode", "lengths", "batch")
    return list({tuple(row[key] for key in keys): row for row in rows}.values())


def profile_of(row: Row) -> str:
    """The method whose model says how many tokens are kept, as it is called now; ltp where no command says so."""
    said = re.search(r"--profile (\w+)", row["command"])
    return str(with_methods_today({"method": said[1] if said else "ltp"})["method"])


def engine_of(row: Row) -> str:
    """Its name without the method's, where it scores as that does."""
    method = with_methods_today({"method": row["engine"].removeprefix(f"{OURS[1]}-")})["method"]
    return OURS[1] if method == SHOWN else str(row["engine"])


def one(rows: Sequence[Row], engine: str, *, lengths: str, batch: int, mode: str | None = None) -> Row | None:
    """The row of an engine; ours in the faster of the two modes, unless one is asked for."""
    found = [
        row
        for row in rows
        if (row["engine"], row["lengths"], row["batch"]) == (engine, lengths, batch) and mode in (None, row["mode"])
    ]
    return min(found, key=lambda row: row["ms_p50"], default=None)


def ours(rows: Sequence[Row], *, lengths: str, batch: int) -> tuple[Row, Row]:
    """Our dense and our pruned engine."""
    dense, pruned = (one(rows, name, lengths=lengths, batch=batch) for name in OURS)
    assert dense is not None and pruned is not None  # measured in every call
    return dense, pruned


def targets() -> str:
    """What was asked for, and what was measured with the tokens that each method's model keeps."""
    found = {profile: speeds(profile) for profile in PROFILES}
    lines = ["| | target | " + " | ".join(PROFILES.values()) + " |", "|---" * (len(PROFILES) + 2) + "|"]
    for what, target in next(iter(found.values())):
        lines.append(f"| {what} | {target} | " + " | ".join(found[name][what, target] for name in PROFILES) + " |")
    for length in (64, 128, 256, 512):
        shares = [score_cost(length, SCORED[profile]) for profile in PROFILES]
        cells = " | ".join(said(f"{share:.1%}", met=share <= 0.05) for share in shares)
        lines.append(f"| scores, share of a layer at {length} tokens | <= 5% | {cells} |")
    return "\n".join(lines)


def said(found: str, *, met: bool) -> str:
    return found if met else f"{found} (missed)"


def speeds(profile: str) -> dict[tuple[str, str], str]:
    """(what, target) -> what was measured, every ratio of one call; nothing where a rival is of another."""
    rows = measured("engines", profile, "qnli")
    dense, pruned = ours(rows, lengths="qnli", batch=256)
    speedup, saved = dense["ms_p50"] / pruned["ms_p50"], 1 / pruned["engine_relative_flops"]
    found = {
        ("batch 256, QNLI lengths, pruned against our dense engine: share of the FLOPs ratio", ">= 95%"): said(
            f"{speedup / saved:.0%}: {speedup:.2f}x of {saved:.2f}x", met=speedup / saved >= 0.95
        )
    }
    for name, engine, least in (("Hugging Face SDPA, padded", "hf-sdpa", 6), ("torch.compile", "hf-compile", 5)):
        rival = one(rows, engine, lengths="qnli", batch=256, mode="padded")
        ratio = 0.0 if rival is None else rival["ms_p50"] / pruned["ms_p50"]
        text = "" if rival is None else f"{ratio:.1f}x ({rival['ms_p50']:.2f} ms / {pruned['ms_p50']:.2f} ms)"
        found[f"batch 256, pruned against {name}", f">= {least}x"] = text and said(text, met=ratio >= least)
    rate = dense["useful_tflops"]
    found["batch 256, dense engine, useful TFLOP/s", ">= 450"] = said(f"{rate:.0f}", met=rate >= 450)
    found["batch 1, pruned", "<= 0.45 ms"] = said_of_one_text(measured("latency", profile, "qnli") or rows)
    return found


def said_of_one_text(rows: Sequence[Row]) -> str:
    """In turns, where that was measured."""
    dense, pruned = ours(rows, lengths="qnli", batch=1)
    compiled = one(rows, "hf-compile", lengths="qnli", batch=1)
    others = f"our dense engine {dense['ms_p50']:.2f}"
    others += "" if compiled is None else f", torch.compile {compiled['ms_p50']:.2f}"
    return said(f"{pruned['ms_p50']:.2f} ms ({others})", met=pruned["ms_p50"] <= 0.45)


def score_cost(length: int, scored: str) -> float:
    """What scores add to attention, over the time of a base-size layer at 500 TFLOP/s."""
    runs = [row for row in measured("kernels") if row["engine"] == "attention" and row["lengths"] == f"n={length}"]
    times = {row["mode"]: row["ms_p50"] for row in runs}
    tokens, width = runs[0]["batch"] * length, 768
    layer = 2 * (12 * tokens * width**2 + 2 * tokens * length * width) / 500e9
    return float((times[scored] - times["plain"]) / layer)


def clocks_table() -> str:
    lines = ["| dense engine, batch 256 | ms | useful TFLOP/s | MHz (at most) | W (at most) |", "|---" * 5 + "|"]
    for row in measured("clocks"):
        clock = f"{row['sm_mhz']:.0f} ({row['most_sm_mhz']:.0f})"
        power = f"{row['watts']:.0f} ({row['most_watts']:.0f})"
        lines.append(f"| {row['mode']} | {row['ms_p50']:.2f} | {row['useful_tflops']:.0f} | {clock} | {power} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet: `bench.py clocks`."


def engines_table(lengths: str) -> str:
    rows = [row for row in measured("engines", SHOWN, lengths) if row["lengths"] == lengths]
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
    pyplot = plotting()
    figure, panels = pyplot.subplots(1, 3, figsize=(14.5, 4.6), constrained_layout=True)
    for axes, (lengths, title) in zip(panels, LENGTHS.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ends = []
        here = [row for row in measured("engines", SHOWN, lengths) if row["lengths"] == lengths]
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
        named = [str(tick) if tick.bit_length() % 2 else "" for tick in ticks]  # powers of 4: all have no room
        axes.set_xticks(ticks, named)
        axes.xaxis.minorticks_off()
        log_ticks(axes)
        label_ends(axes, ends, gap=0.065)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("texts per batch")
    panels[0].set_ylabel("texts per second")
    figure.suptitle(f"Base-size encoder, fp16, {here[-1]['device']}; ours in the faster mode", fontsize=11)
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


def attention_table() -> str:
    """Microseconds: the engine as it was, the tiles it has now as they were tried alone, and the library."""
    head = "head | tokens of a run | engine then | scored | tiles now | with columns | varlen | SDPA flash | SDPA cuDNN"
    lines = [f"| {head} | fastest library / tiles now |", "|---" * 10 + "|"]
    for width, lengths in ((width, n) for width in RUNGS for n in ("ragged", "128", "256", "512", "2048", "8192")):
        here = [row for row in read_rows(STUDY) if row.get("width") == width and row.get("n") == lengths]
        rivals = {row["variant"]: row["microseconds"] for row in here if row["part"] == "rival"}
        longest = 512 if lengths == "ragged" else int(lengths)
        rung = ([each for each in RUNGS[width] if each.longer_than < longest] or [None])[-1]
        if rung is None:  # in one tile, as it was
            plain, scored = rivals["engine plain"], rivals["engine scored"]
        else:
            plain = time_in(rung.plain, [row for row in here if row["part"] == "plain"])
            columns = [row for row in here if row["part"] == "columns" and row["every"] == 1]
            scored = plain + time_in(rung.columns, columns)
        library = [rivals.get(name) for name in ("varlen", "sdpa flash", "sdpa cudnn")]
        times = (rivals["engine plain"], rivals["engine scored"], plain, scored, *library)
        cells = " | ".join("" if time is None else f"{time:.1f}" for time in times)
        ahead = min(time for time in library if time is not None) / plain
        lines.append(f"| {width} | {lengths} | {cells} | {ahead:.2f} |")
    return "\n".join(lines)


def time_in(tiles: Tiles, rows: Sequence[Row]) -> float:
    wanted = (tiles.queries, tiles.keys, tiles.warps, tiles.stages, tiles.described, tiles.keys_as_rows)
    names = ("queries", "keys", "warps", "stages", "tma")
    plain = [row for row in rows if not any(row.get(flag) for flag in ("HALF", "TENSOR_SUMS", "BLOCKS_FIRST"))]
    (found,) = (row for row in plain if (*(row[n] for n in names), row.get("KEYS_AS_ROWS", False)) == wanted)
    return float(found["microseconds"])


def decisions_table() -> str:
    head = "run | dtype | mode | texts | same kept counts | same prediction | metric (reference) | nearest score"
    lines = [f"| {head} |", "|" + "---|" * 8]
    for row in read_rows(DECISIONS):
        metric = f"{100 * row['metric']['score']:.2f} ({100 * row['metric_of_reference']['score']:.2f})"
        counts = f"{row['texts']} | {row['same_kept_counts']} | {row['same_prediction']}"
        furthest = f"{row['furthest_from_threshold_where_other']:.1e}"
        lines.append(f"| {row['run']} | {row['dtype']} | {row['mode']} | {counts} | {metric} | {furthest} |")
    return "\n".join(lines)


def checks_table() -> str:
    """Tests on the GPU, and those of the kernels against their twins under compute-sanitizer: of each part the newest
    row that ended in time, or in which something failed before."""
    lines = ["| part | by | sources | passed | failed | accesses out of bounds |", "|---|---|---|---|---|---|"]
    ended = (row for row in read_rows(CHECKS) if row["status"] != OUT_OF_TIME or row["failed"] + row["error"])
    for row in {(row["part"], row["tool"]): row for row in ended}.values():
        errors = "" if row["memory_errors"] is None else row["memory_errors"]
        failed, sources = row["failed"] + row["error"], row["commit"][:7]
        if row["status"] and not failed:  # a file that a crash ended counts no failure
            failed = f"status {row['status']}"
        lines.append(f"| {row['part']} | {row['tool']} | {sources} | {row['passed']} | {failed} | {errors} |")
    return "\n".join(lines)


def long_table() -> str:
    """Texts a second on long texts, engines in turns, and how much of what FLOPs promise pruning reaches."""
    heads = ["shape", "tokens", "Hugging Face SDPA, padded", "torch, unpadded", "thresher dense", "thresher pruned"]
    heads += ["over own dense", "share of the FLOPs ratio", "over Hugging Face"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows = {(row["shape"], row["tokens"], row["engine"]): row for row in read_rows(LONG) if "sequences_per_s" in row}
    for shape, tokens in dict.fromkeys((shape, tokens) for shape, tokens, _ in rows):
        found = [rows[shape, tokens, name] for name in ("hf-sdpa", "torch-unpadded", *OURS)]
        stock, _, dense, pruned = (row["sequences_per_s"] for row in found)
        promised = 1 / found[-1]["engine_relative_flops"]
        rates = " | ".join(f"{row['sequences_per_s']:,.0f}" for row in found)
        reached = f"{pruned / dense:.2f}x of {promised:.2f}x | {pruned / dense / promised:.0%} | {pruned / stock:.1f}x"
        lines.append(f"| {shape} | {tokens} | {rates} | {reached} |")
    return "\n".join(lines)


def front_table() -> str:
    """For docs/speed.md: against the strongest unpadded rival at batch 256, and one text alone, in turns."""
    heads = ["qnli lengths, batch 256: texts/s", "squad lengths, batch 256: texts/s", "one text, ms"]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in ("hf-sdpa", "hf-compile", "torch-unpadded", *OURS):
        mode = "padded" if name.startswith("hf") else None
        cells = []
        for lengths in ("qnli", "squad"):
            rows = measured("engines", SHOWN, lengths)
            row = one(rows, name, lengths=lengths, batch=256, mode=mode)
            rival = one(rows, "torch-unpadded", lengths=lengths, batch=256)
            assert rival is not None  # measured in every call
            ratio = 0.0 if row is None else rival["ms_p50"] / row["ms_p50"]
            cells.append("" if row is None else f"{row['sequences_per_s']:,.0f} ({ratio:.2f}x)")
        alone = one(measured("latency", SHOWN, "qnli"), name, lengths="qnli", batch=1)
        cells.append("" if alone is None else f"{alone['ms_p50']:.2f}")
        shown = NAMES[(name, "graph") if name in OURS else (name, mode or "dense")]
        lines.append(f"| {shown.replace(', graph', '')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts() -> dict[str, Any]:
    """What stands between which marks of the page."""
    return {
        "targets": targets,
        "engines": lambda: "\n\n".join(engines_table(lengths) for lengths in LENGTHS),
        "kernels": kernels_table,
        "attention": attention_table,
        "decisions": decisions_table,
        "checks": checks_table,
        "long": long_table,
        "clocks": clocks_table,
    }


if __name__ == "__main__":
    throughput_figure()
    growth_figure()
    for mark, made in parts().items():
        write_between_marks(mark, made(), PAGE)
    write_between_marks("gpu", front_table(), HERE.parents[1] / "docs" / "speed.md")
