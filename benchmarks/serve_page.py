"""The tables of benchmarks/serve/README.md, from its records.

python benchmarks/serve_page.py
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
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


def overheads(rows: Sequence[Row]) -> str:
    """The engine alone, and what a server makes of it: the mean of each commit's turns."""
    lines = []
    for (model, commit), turns in in_turns(rows, "overhead", ("model",)).items():
        alone = mean(row["predict_texts_per_s"] for row in turns)
        cells = [model, commit, str(len(turns)), f"{alone:.1f}"]
        for name in ("predict_texts_per_s_by_clients", *(f"texts_per_s_requests_of_{size}" for size in (1, 32))):
            if any(name not in row for row in turns):
                cells.append("-")
                continue
            rate = mean(row[name] for row in turns)
            cells.append(f"{rate:.1f}, {100 * abs(1 - rate / alone):.0f}% {'less' if rate < alone else 'more'}")
        lines.append(cells)
    head = ["model", "server of commit", "turns", "engine alone, texts/s", "16 at a time"]
    return table([*head, "requests of one text", "requests of 32"], lines)


def in_turns(rows: Sequence[Row], part: str, names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows of a part by these fields and the commit, in the order of time."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted((row for row in rows if row["part"] == part), key=lambda row: str(row["created"])):
        found.setdefault((*(row.get(name) for name in names), row["commit"][:7]), []).append(row)
    return found


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
    kept = [row for row in rows if row.get("when") != "first seconds"]
    for (size, loop, commit), turns in in_turns(kept, "http", ("texts_a_request", "loop")).items():
        how = f"closed, {turns[0]['clients']} clients" if loop == "closed" else "open, half of that"
        rates = [row["requests_per_s"] for row in turns]
        cells = [str(size), how, commit, ", ".join(f"{rate:.0f}" for rate in rates), f"{size * mean(rates):,.0f}"]
        lines.append([*cells, *(f"{mean(row[name] for row in turns):.0f}" for name in ("p50_ms", "p95_ms", "p99_ms"))])
    lines.sort(key=lambda cells: (int(cells[0]), cells[1]))
    head = ["pairs a request", "loop", "server of commit", "requests/s, each turn", "pairs/s"]
    return table([*head, "p50 ms", "p95 ms", "p99 ms"], lines)


def main() -> None:
    rows = read_rows(RECORDS)
    tables = {"limits": limits, "overheads": overheads, "overloads": overloads, "gpu": gpus, "http": ceilings}
    for mark, make in {**tables, "loads": loads}.items():
        write_between_marks(mark, make(rows), PAGE)


if __name__ == "__main__":
    main()
