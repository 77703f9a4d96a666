"""The tables of long texts in README.md, from the newest record of each part of long.py.

python benchmarks/long_page.py
"""

from measuring import RESULTS, Row, read_rows, threads_of, write_between_marks
from results import NAMES, loose

FILE = RESULTS / "long.jsonl"
STATIC = "int8-static"


def table(records: dict[str, Row]) -> str:
    parts = {"race": race, "old": against_old, "queries": queries}
    if all(part in records for part in ("race", "old", "memory")):
        parts = {"memory": targets, **parts}
    return "\n\n".join(draw(records[part], records) for part, draw in parts.items() if part in records)


def title(record: Row) -> str:
    pairs = f"{record['texts']} pairs of {record['tokens']:.0f} tokens on average, batch {record['batch_size']}"
    return f"`{record['model']}` ({record['shape']}): {pairs}, {threads_of(record)}"


def full_name(row: Row) -> str:
    engine, _, order = row["engine"].partition(", ")
    return f"{NAMES[engine]}, {row['dtype']}{', sorted by length' if order else ''}"


def targets(record: Row, records: dict[str, Row]) -> str:
    """What is asked of int8-static, and what the tables say."""
    rows, old = records["race"]["rows"], records["old"]
    ours = [row for row in rows if row["dtype"] == STATIC]
    dense = next(row for row in ours if row["engine"] == "thresher dense")
    rival = next(row for row in rows if row["engine"].startswith("onnxruntime"))
    before = next(row for row in old["rows"] if (row["engine"], row["dtype"]) == ("thresher dense", STATIC))
    peaks = {(row["engine"], row["dtype"]): row["peak_mib"] for row in record["rows"]}
    mine, theirs = peaks["thresher dense", STATIC], peaks["hugging face", "fp32"]
    asked = [
        (f"dense, as fast as at {old['old']}", "2x", f"{before['speedup']:.2f}x", before["speedup"] >= 2),
        ("dense over onnxruntime int8, sorted", "2.4x", *over(dense, rival, 2.4)),
        ("dense, peak memory", f"Hugging Face's {theirs:.0f} MiB at most", f"{mine:.0f} MiB", mine <= theirs),
    ]
    for row in ours:
        if row is not dense:
            cost = row["engine_relative_flops"]
            share = row["texts_per_s"] / dense["texts_per_s"] * cost
            asked.append(
                (f"pruned to {cost:.2f} of the FLOPs: share of that ratio", "88%", f"{share:.0%}", share >= 0.88)
            )
    lines = ["| int8-static | asked | measured |", "|" + "---|" * 3]
    return "\n".join(
        lines + [f"| {what} | {goal} | {found}{'' if met else ' (missed)'} |" for what, goal, found, met in asked]
    )


def over(row: Row, rival: Row, goal: float) -> tuple[str, bool]:
    ratio = row["texts_per_s"] / rival["texts_per_s"]
    return f"{ratio:.2f}x", ratio >= goal


def race(record: Row, records: dict[str, Row]) -> str:
    """Against the best rival, and how much of the saving in FLOPs is a saving in time."""
    peaks = {key_of(row): row["peak_mib"] for row in records.get("memory", {"rows": []})["rows"]}
    rows = record["rows"]
    rival = max(row["texts_per_s"] for row in rows if not row["engine"].startswith("thresher"))
    dense = {row["dtype"]: row["texts_per_s"] for row in rows if row["engine"] == "thresher dense"}
    head = "pairs/s | over the best rival | FLOPs in the engine | of the FLOPs ratio | one pair, ms | MiB"
    lines = [f"| {title(record)} | {head} |", "|" + "---|" * 7]
    for row in rows:
        cost, speed = row["engine_relative_flops"], row["texts_per_s"]
        share = f"{speed / dense[row['dtype']] * cost:.0%}" if row["engine"] == "thresher pruned" else ""
        peak = peaks.get(key_of(row))
        cells = [f"{speed:.1f}{loose(row)}", f"{speed / rival:.2f}", "" if cost is None else f"{cost:.2f}", share]
        cells += [f"{row['latency_ms_p50']:.1f}", "" if peak is None else f"{peak:.0f}"]
        lines.append(f"| {full_name(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def key_of(row: Row) -> tuple[str, ...]:
    return row["engine"], row["dtype"], row["path"]


def against_old(record: Row, records: dict[str, Row]) -> str:
    lines = [f"| seconds of a batch | at {record['old']} | at {record['commit']} | times as fast |", "|" + "---|" * 4]
    for row in record["rows"]:
        times = f"{row['old_s']:.3f} | {row['new_s']:.3f} | {row['speedup']:.2f}"
        lines.append(f"| {row['engine']}, {row['dtype']} | {times} |")
    return "\n".join(lines)


def queries(record: Row, records: dict[str, Row]) -> str:
    said = {1: "all", 0: "the first"}
    lines = ["| scores from queries | pairs/s | FLOPs in the engine |", "|" + "---|" * 3]
    for row in record["rows"]:
        which = row.get("score_queries")
        name = "none: dense" if which is None else said.get(which, f"one in {which}")
        lines.append(f"| {name} | {row['texts_per_s']:.1f}{loose(row)} | {row['engine_relative_flops']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write_between_marks("long", table({record["part"]: record for record in read_rows(FILE)}))
