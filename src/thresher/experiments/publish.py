"""What experiments share in print: tables between marks in README.md."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.errors import RunError
from thresher.records import write_text

WIDEST = 100  # characters of a line


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_listed(rows: Sequence[dict[str, Any]], config: dict[str, Any]) -> list[dict[str, Any]]:
    """In the order in which config.toml lists tasks and methods; they were measured in another, the longest first."""
    tasks, methods = list(config["tasks"]), list(config["compared"])
    return sorted(rows, key=lambda row: (tasks.index(row["task"]), methods.index(row["method"]), row["seed"]))


def write_between_marks(file: Path, mark: str, text: str) -> None:
    """Replace what stands between `<!-- mark -->` and the next `<!-- end -->`."""
    page = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, found, rest = page.partition(f"<!-- {mark} -->\n")
    _, ended, after = rest.partition("<!-- end -->")
    if not (found and ended):
        raise RunError(f"{file} has no <!-- {mark} --> with an <!-- end --> after it; put the two lines back")
    wrapped = "\n".join(part for line in text.split("\n") for part in _wrapped(line))
    write_text(file, f"{before}{found}{wrapped}\n{ended}{after}")


def _wrapped(line: str) -> list[str]:
    """A line of prose in lines that can be read; rows of a table stay."""
    if line.startswith("|") or len(line) <= WIDEST:
        return [line]
    indent = "  " if line.startswith("- ") else ""
    return textwrap.wrap(line, WIDEST, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
