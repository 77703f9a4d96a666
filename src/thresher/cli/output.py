"""What commands print: tables for people, one JSON line for machines, one line for an error.

Labels, texts, paths and messages come from anywhere: what a terminal would obey in them is written out here, once.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from thresher.cli.quiet import quiet_libraries as quiet_libraries
from thresher.errors import RunError
from thresher.records import metric_text
from thresher.text import visible
from thresher.workplace import FULL, refusal

# What agreement counts, by what outputs mean.
SAME = {
    "classes": "same decisions as",
    "labels": "the same labels, all of them, as",
    "value": "correlation with",
    "score": "correlation with",
    "embedding": "mean cosine to",
    "span": "the same likeliest start and end as",
    "tags": "the same tags of tokens as",
}
IN_ASCII = str.maketrans({"█": "#", **{chr(ord("₀") + digit): f"_{digit}" for digit in range(10)}})
LONGEST = 2000  # characters of an error; a path or label in it may have any number


class Screen(Console):
    """A console on which the colours are ours alone, with bars and layers' numbers where there is only ASCII."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        plain = not self.encoding.startswith("utf")
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = segment.text.translate(IN_ASCII) if plain else segment.text
                yield Segment(visible(text), segment.style)


def console(as_json: bool) -> Console:
    """Where people read: standard output, or standard error when the JSON line has standard output for itself."""
    return Screen(stderr=as_json, highlight=False)


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=not _writes_unicode(sys.stdout), allow_nan=False)
    try:
        print(visible(text), flush=True)
    except BrokenPipeError:
        raise  # whoever read has enough
    except OSError as error:
        raise RunError(
            f"cannot write the JSON line to standard output: {error.strerror}; write it elsewhere"
        ) from error


def fail(message: str, *, code: int) -> int:
    """Print an error as one line and return its exit code. Only the first of several processes speaks."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        line = visible(" ".join(message.split()))
        line = line if len(line) <= LONGEST else f"{line[: LONGEST - 500]} ... {line[-500:]}"
        print("error:", line, file=sys.stderr, flush=True)
    _let_go_of(sys.stdout)
    return code


def no_room(error: Exception) -> str | None:
    """What to say of a full disk; None where the error is another."""
    why = refusal(error, FULL)
    where = getattr(error, "filename", None) or "the output"
    return None if why is None else f"cannot write {where}: {why}; free some space, or write elsewhere"


def take_any_character() -> None:
    """Let streams that know few characters write the others out, instead of failing in the middle of a table."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _writes_unicode(stream):
            stream.reconfigure(errors="backslashreplace")


def _writes_unicode(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name.startswith("utf")


def _let_go_of(stream: TextIO) -> None:
    """What a full disk did not take would be tried again when Python ends, with an error of its own."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def listeners(screen: Console) -> dict[str, Any]:
    """Who a job tells how it goes: bars, and a line for each note; a warning is in yellow."""
    from thresher.training.progress import Bars

    def note(text: str) -> None:
        screen.print(text, style="yellow" if text.startswith("warning: ") else None, markup=False)

    return {"progress": Bars(screen), "note": note}


MOST_ACROSS = 5  # metrics beside each other in a terminal of 80 characters


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def quality_table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """One line per model: its metrics and its cost. rows: name -> Quality.to_dict(). Many metrics have a line each."""
    table = Table(title=escape(title), title_justify="left")
    names = list(next(iter(rows.values()))["metrics"])
    names = names if len(names) > 2 else [name for name in names if name != "score"]  # score repeats a single metric
    heads, lines = ["model", *names, "relative FLOPs", "GFLOPs per text", "rows"], []
    for name, row in rows.items():
        cost = percent(row["relative_flops"] if row["relative_flops"] is not None else 1.0)
        metrics = [metric_text(name, row["metrics"][name]) for name in names]
        lines.append([name, *metrics, cost, f"{row['gflops']:.3f}", str(row["rows"])])
    across = [heads, *lines]
    first, *rest = zip(*across, strict=True) if len(names) > MOST_ACROSS else across
    table.add_column(first[0])
    for head in first[1:]:
        table.add_column(head, justify="right")
    for line in rest:
        table.add_row(*line)
    return table


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
        span = "-".join(map(str, dict.fromkeys((part["shortest"], part["longest"]))))
        table.add_row(span, str(part["rows"]), f"{100 * part['score']:.2f}", percent(part["relative_flops"]))
    return table
