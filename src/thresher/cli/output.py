"""What commands print: tables for people, one JSON line for machines, one line for an error."""

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console(as_json: bool) -> Console:
    """Where people read: standard output, or standard error when the JSON line has standard output for itself."""
    return Console(stderr=as_json, highlight=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def fail(message: str, *, code: int) -> int:
    """Print an error as one line and return its exit code. Only the first of several processes speaks."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
    return code


def quiet_libraries() -> None:
    """Our own output says what matters; the libraries' load reports and progress bars would bury it."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves both untyped
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def quality_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """One line per model: its metrics and its cost. rows: name -> Quality.to_dict()."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("model")
    names = list(next(iter(rows.values()))["metrics"])
    names = names if len(names) > 2 else [name for name in names if name != "score"]  # score repeats a single metric
    for name in names:
        table.add_column(name, justify="right")
    for name in ("relative FLOPs", "GFLOPs per text", "rows"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        cost = percent(row["relative_flops"] if row["relative_flops"] is not None else 1.0)
        metrics = [f"{100 * row['metrics'][name]:.2f}" for name in names]
        table.add_row(name, *metrics, cost, f"{row['gflops']:.3f}", str(row["rows"]))
    return table


def print_gains(screen: Console, quality: dict[str, dict[str, dict[str, Any]]], recipe: Any) -> None:
    """Where pruned is ahead of dense, what else may be the reason. quality: split -> model -> Quality.to_dict()."""
    from thresher.evaluation.gain import gain_notes

    for text in gain_notes(quality, recipe):
        screen.print(text, markup=False)


def layers_table(quality: dict[str, Any]) -> Table:
    """Mean tokens kept after each layer, with a bar."""
    table = Table(title=f"tokens kept (mean of {quality['mean_length']:.1f} at the input)", title_justify="left")
    table.add_column("after layer", justify="right")
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for layer, kept in enumerate(quality["kept_per_layer"], start=1):
        share = kept / quality["mean_length"]
        table.add_row(str(layer), f"{kept:.1f}", percent(share), "█" * max(1, round(24 * share)))
    return table


def quartile_table(quality: dict[str, Any]) -> Table:
    """Quality and cost by input length, to see whether long inputs are over-pruned."""
    table = Table(title="by length quartile", title_justify="left")
    for name in ("tokens", "rows", "score", "relative FLOPs"):
        table.add_column(name, justify="right")
    for part in quality["quartiles"]:
        span = f"{part['shortest']}-{part['longest']}"
        table.add_row(span, str(part["rows"]), f"{100 * part['score']:.2f}", percent(part["relative_flops"]))
    return table
