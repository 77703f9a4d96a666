"""The GPU tests, and those of the kernels once more under compute-sanitizer. From the repository's root:

    PYTHONPATH=src python benchmarks/gpu/check.py --out benchmarks/gpu/checks.jsonl

Files run beside each other, one for each processor, because most of their time is Triton's compiler; one JSON line for
each part, written when its last file ends. The same command again runs the parts that did not pass with this commit. A
file has as long as the whole call has left.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
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
    "places": [f"{KERNELS}/test_{name}.py" for name in ("places", "distances", "rotary")],
    "eight bits": [f"{KERNELS}/test_eight.py"],
    "other kernels": [f"{KERNELS}/test_{name}.py" for name in ("behind", "embeddings", "first", "norm", "layer")],
    "engine": ["tests/engine"],
    "training": ["tests/training", "tests/models", "tests/baselines"],
    "commands": ["tests/cli", "tests/evaluation", "tests/integrations", "tests/benchmarks"],
}
CHECKED = ("attention", "products", "pruning", "places", "eight bits", "other kernels")
NUMBERS = ("passed", "failed", "error", "memory_errors")
NO_TESTS = 5  # pytest's exit status where no test is chosen
SANITIZER = ("--tool", "memcheck", "--error-exitcode", "7")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; they are added at the end")
    parser.add_argument("--logs", type=Path, default=Path("runs/checks"), help="folder for what the tests print")
    parser.add_argument("--limit", type=float, default=400, help="seconds for each file")
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
        rows += checked(parts, tool, arguments, book)
    book.end()
    sys.exit(book.left_out > 0 or not all(row["good"] for row in rows))


def checked(parts: Sequence[str], tool: str, arguments: argparse.Namespace, book: Book) -> list[dict[str, Any]]:
    """Run the files of these parts and write a row for each: its numbers, and the worst exit status."""
    began, rows = time.monotonic(), []
    files = {part: with_gpu_tests(PARTS[part]) for part in parts}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        running = {part: [pool.submit(ended, file, tool, arguments, book) for file in files[part]] for part in parts}
        for part in sorted(parts, key=lambda part: len(files[part])):
            found = [future.result() for future in running[part]]
            said = [counts(words) for words, _ in found]
            numbers = {name: total([each[name] for each in said]) for name in NUMBERS}
            row = {"part": part, "tool": tool or "pytest", **numbers, "status": worst([status for _, status in found])}
            row["seconds"] = round(time.monotonic() - began, 1)
            row["good"] = row["status"] == 0 and bool(row["passed"])  # where there is no GPU, nothing is checked
            print(json.dumps(row), flush=True)
            book.add(**row)
            rows.append(row)
    return rows


def with_gpu_tests(places: Sequence[str]) -> list[Path]:
    """Files with tests that are marked so, by hand, as one of several devices, or because they take the DEVICE that is
    there, the largest first; kernels have parts of their own."""
    named = [Path(place) for place in places]
    inside = [file for place in named for file in place.rglob("test_*.py") if file.parent != KERNELS]
    files = [*(place for place in named if place.is_file()), *inside]
    found = [file for file in files if re.search(r"mark\.gpu|DEVICE", file.read_text(encoding="utf-8"))]
    return sorted(found, key=lambda file: -file.stat().st_size)


def ended(file: Path, tool: str, arguments: argparse.Namespace, book: Book) -> tuple[str, int]:
    """What a file's tests print, and how they end."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(file)]
    if tool:
        place = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        command = [place, *SANITIZER, *command, "-k", "twin"]
    try:
        limit = max(1.0, min(arguments.limit, book.left))
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        said, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, status = str(error), 124
    except OSError as error:  # no sanitizer on this machine
        said, status = str(error), 127
    name = f"{tool or 'pytest'}-{file.parent.name}-{file.stem}.log"  # two folders have files of one name
    (arguments.logs / name).write_text(said, encoding="utf-8")
    nothing = status == NO_TESTS and "deselected" in said
    return said, 0 if nothing else status


def worst(statuses: Sequence[int]) -> int:
    """The one farthest from 0: a process that a signal ended has a negative one."""
    return max(statuses, key=abs)


def total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def counts(said: str) -> dict[str, int | None]:
    """Tests by outcome in pytest's last line, and the sanitizer's errors where it ran."""
    found: dict[str, int | None] = dict.fromkeys(NUMBERS[:3], 0)
    summaries = re.findall(r"^.* in [\d.]+s\b.*$", said, re.MULTILINE)
    for number, outcome in re.findall(r"(\d+) (passed|failed|error)s?\b", summaries[-1] if summaries else ""):
        found[outcome] = int(number)
    summary = re.search(r"ERROR SUMMARY: (\d+) errors?", said)
    return {**found, "memory_errors": int(summary[1]) if summary else None}


if __name__ == "__main__":
    main()
