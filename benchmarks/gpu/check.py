"""The GPU tests, and those of the kernels once more under compute-sanitizer. From the repository's root:

    PYTHONPATH=src python benchmarks/gpu/check.py --out benchmarks/gpu/checks.jsonl

Parts run beside each other, because most of their time is Triton's compiler; one JSON line for each, written when it
ends. The same command again runs what did not pass with this commit. A part has as long as the whole call has left.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from book import Book

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import made_by  # noqa: E402

KERNELS = Path("tests/engine/kernels")
PARTS: dict[str, list[str]] = {
    "attention": [f"{KERNELS}/test_attention.py", f"{KERNELS}/test_long_runs.py"],
    "products": [f"{KERNELS}/test_linear.py", f"{KERNELS}/test_ends.py"],
    "pruning": [f"{KERNELS}/test_prune.py"],
    "places": [f"{KERNELS}/test_{name}.py" for name in ("places", "rotary")],
    "eight bits": [f"{KERNELS}/test_eight.py"],
    "other kernels": [f"{KERNELS}/test_{name}.py" for name in ("behind", "embeddings", "first", "norm", "layer")],
    "engine": ["tests/engine", f"--ignore={KERNELS}"],
    "training": ["tests/training", "tests/models", "tests/baselines"],
    "commands": ["tests/cli", "tests/evaluation", "tests/benchmarks"],
}
CHECKED = ("attention", "products", "pruning", "places", "eight bits", "other kernels")
SANITIZER = ("--tool", "memcheck", "--error-exitcode", "7")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; they are added at the end")
    parser.add_argument("--logs", type=Path, default=Path("runs/checks"), help="folder for what the tests print")
    parser.add_argument("--limit", type=float, default=400, help="seconds for each part")
    parser.add_argument("--seconds", type=float, default=560, help="in all")
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    made, key = made_by("gpu/check.py", device="cuda"), ("part", "tool", "good")
    book = Book(arguments.out, made, key=key, seconds=arguments.seconds)
    print(book, flush=True)
    rows: list[dict[str, Any]] = []
    for tool in ("", "memcheck"):  # one after the other: the second finds compiled kernels
        about = {"tool": tool or "pytest", "good": True}
        parts = [part for part in (CHECKED if tool else PARTS) if book.wants(part=part, **about)]
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            rows += pool.map(lambda part, tool=tool: checked(part, tool, arguments, book), parts)
    book.end()
    sys.exit(book.left_out > 0 or not all(row["good"] for row in rows))


def checked(part: str, tool: str, arguments: argparse.Namespace, book: Book) -> dict[str, Any]:
    """Run one part and write its row: its numbers, and the exit status as the last word."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *PARTS[part]]
    if tool:
        place = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        command = [place, *SANITIZER, *command, "-k", "twin"]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=min(arguments.limit, book.left))
        said, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, status = str(error), 124
    except OSError as error:  # no sanitizer on this machine
        said, status = str(error), 127
    (arguments.logs / f"{tool or 'pytest'}-{part.replace(' ', '-')}.log").write_text(said, encoding="utf-8")
    row = {"part": part, "tool": tool or "pytest", **counts(said), "status": status}
    row["seconds"] = round(time.monotonic() - began, 1)
    row["good"] = status == 0 and bool(row["passed"])  # where there is no GPU, nothing is checked
    print(json.dumps(row), flush=True)
    book.add(**row)
    return row


def counts(said: str) -> dict[str, int | None]:
    """Tests by outcome in pytest's last line, and the sanitizer's errors where it ran."""
    found: dict[str, int | None] = dict.fromkeys(("passed", "failed", "error"), 0)
    summaries = re.findall(r"^.* in [\d.]+s\b.*$", said, re.MULTILINE)
    for number, outcome in re.findall(r"(\d+) (passed|failed|error)s?\b", summaries[-1] if summaries else ""):
        found[outcome] = int(number)
    summary = re.search(r"ERROR SUMMARY: (\d+) errors?", said)
    return {**found, "memory_errors": int(summary[1]) if summary else None}


if __name__ == "__main__":
    main()
