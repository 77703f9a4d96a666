"""The tables of benchmarks/serve/README.md, from its records.

python benchmarks/serve_page.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import read_rows, write_between_marks

HERE = Path(__file__).resolve().parent
RECORDS, PAGE = HERE / "serve" / "results.jsonl", HERE / "serve" / "README.md"
Row = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def newest(rows: Sequence[Row], part: str) -> list[Row]:
    """Of one part, of each model the last session: only what was measured in turn is compared."""
    chosen = [row for row in rows if row["part"] == part]
    last = {row["model"]: row["session"] for row in chosen}
    return [row for row in chosen if row["session"] == last[row["model"]]]


def times(row: Row) -> list[str]:
    return [f"{row[name]:.0f}" if row.get(name) is not None else "-" for name in ("p50_ms", "p95_ms", "p99_ms")]


def accuracy(row: Row) -> str:
    return "-" if row.get("quality") is None else f"{100 * row['quality']:.1f}"


def limits(rows: Sequence[Row]) -> str:
    """For each server the best rate that held in each turn, and the mean of the turns against the best rival's."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in newest(rows, "limit"):
        found.setdefault((row["model"], row["server"]), []).append(row)
    means = {key: sum(row["requests_per_s"] for row in turns) / len(turns) for key, turns in found.items()}
    lines = []
    for (model, server), turns in found.items():
        rivals = [rate for (other, name), rate in means.items() if other == model and not name.startswith("thresher")]
        best = max(rivals, default=0.0)
        ratio = f"{means[model, server] / best:.2f}x" if best else "-"
        each = ", ".join(f"{row['requests_per_s']:.1f}" for row in turns)
        last = max(turns, key=lambda row: row["requests_per_s"])
        lines.append([model, f"{turns[0]['limit_ms']:.0f}", server, each, ratio, *times(last), accuracy(last)])
    head = ["model", "p95 at most, ms", "server", "requests/s, each turn", "of the best rival"]
    return table([*head, "p50 ms", "p95 ms", "p99 ms", "accuracy"], lines)


def loads(rows: Sequence[Row]) -> str:
    """Every measurement of the first turn, by falling rate."""
    chosen = [row for row in newest(rows, "load") if row["turn"] == 0]
    order = list(dict.fromkeys((row["model"], row["server"]) for row in chosen))
    chosen.sort(key=lambda row: (order.index((row["model"], row["server"])), row["loop"], row.get("offered") or 0.0))
    lines = []
    for row in chosen:
        loop = "closed, 32 clients" if row["loop"] == "closed" else f"open, {row['offered']:.1f}/s"
        rate = f"{row['requests_per_s']:.1f}"
        lines.append([row["model"], row["server"], loop, rate, *times(row), str(row["refused"]), accuracy(row)])
    return table(["model", "server", "loop", "requests/s", "p50 ms", "p95 ms", "p99 ms", "refused", "accuracy"], lines)


def overloads(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["part"] == "overload":
            memory = row["memory_mib"]
            cells = [row["model"], row["server"], f"{row['seconds']:.0f}", f"{row['offered']:.1f}"]
            cells += [f"{row['requests_per_s']:.1f}", str(row["let_in"]), f"{100 * row['in_time']:.2f}%"]
            cells += [str(row["refused"]), f"{memory[1]:.0f} to {max(memory):.0f}", accuracy(row)]
            lines.append(cells)
    head = ["model", "server", "seconds", "offered/s", "answered/s", "let in", "of these in time"]
    return table([*head, "refused", "MiB", "accuracy"], lines)


def gpus(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["part"] == "gpu":
            closed = f"closed, {row.get('clients')} clients, {row.get('when', 'afterwards')}"
            loop = closed if row["loop"] == "closed" else "open, half of that"
            cells = [row["server"], str(row["texts_a_request"]), loop, f"{row['requests_per_s']:.0f}"]
            lines.append([*cells, f"{row['texts_per_s']:,}", *times(row)])
    return table(["server", "pairs a request", "loop", "requests/s", "pairs/s", "p50 ms", "p95 ms", "p99 ms"], lines)


def ceilings(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row["part"] == "http" and row.get("when") != "first seconds":
            loop = f"closed, {row['clients']} clients" if row["loop"] == "closed" else "open, half of that"
            cells = [str(row["texts_a_request"]), loop, f"{row['requests_per_s']:.0f}", f"{row['texts_per_s']:,}"]
            lines.append([*cells, *times(row), str(row["processes"])])
    return table(
        ["pairs a request", "loop", "requests/s", "pairs/s", "p50 ms", "p95 ms", "p99 ms", "processes that ask"], lines
    )


def main() -> None:
    rows = read_rows(RECORDS)
    for mark, make in {"limits": limits, "loads": loads, "overloads": overloads, "gpu": gpus, "http": ceilings}.items():
        write_between_marks(mark, make(rows), PAGE)
    overheads = [row for row in rows if row["part"] == "overhead"]
    print(json.dumps(overheads, indent=1))


if __name__ == "__main__":
    main()
