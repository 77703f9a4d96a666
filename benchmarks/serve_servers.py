"""The servers of the serving benchmark, each in a process of its own, and the texts that are sent to them.

python benchmarks/serve_servers.py --out reviews.jsonl [--count 600] [--after 0]

writes texts with their labels as JSON lines, or as one text a line where the name ends in .txt: others than the load
has with --after 600.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = {"fastapi": "plain", "fastapi batching": "batching", "onnxruntime int8 batching": "onnx"}
OURS = ("thresher", "thresher int8", "thresher dense")
SERVERS = (*OURS, *KINDS)
NEEDS = {"thresher": ("uvicorn", "msgspec", "prometheus_client"), "rival": ("fastapi", "uvicorn")}
SHORTEST, LONGEST = 10, 500  # tokens


def read_texts(count: int, *, after: int = 0) -> list[tuple[str, str]]:
    """(text, label), lengths spread evenly between 10 and 500 tokens, counted as four thirds of the words; none of
    those that a call for `after` of them gives."""
    from thresher.tasks.movies import data_file
    from thresher.tasks.readers import read_table

    rows = [(row["text"].strip(), row["label"]) for row in read_table(data_file()).rows if row["text"].strip()]
    drawn = random.Random(0)
    drawn.shuffle(rows)
    bins: dict[int, list[tuple[str, str]]] = {}
    for text, label in rows:
        tokens = len(text.split()) * 4 // 3
        if SHORTEST <= tokens <= LONGEST and label in ("0", "1"):
            bins.setdefault(tokens // 50, []).append((text, "positive" if label == "1" else "negative"))
    each, first = -(-count // len(bins)), -(-after // len(bins))
    found = [row for part in bins.values() for row in part[first : first + each]][:count]
    drawn.shuffle(found)
    return found


def command(server: str, options: argparse.Namespace, port: int, more: tuple[str, ...]) -> list[str]:
    """Rivals have the dense model that the run was made from; where a run keeps none, its own weights without gates."""
    longest = ["--port", str(port), "--max-length", str(LONGEST + 12)]
    if server in OURS:
        run = options.int8 if server == "thresher int8" else options.run
        words = ["-m", "thresher", "serve", f"run={run}", *longest, "--log-level", "error", *more]
        return [*words, "--timeout", str(options.timeout), *(["--dial", "0"] if server == "thresher dense" else [])]
    dense = options.run / "dense"
    folder = dense if dense.is_dir() else options.run
    return [str(HERE / "serve_rivals.py"), str(folder), "--kind", KINDS[server], *longest, "--work", options.work]


@contextmanager
def running(server: str, options: argparse.Namespace, *more: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server for the length of a `with`: its port and its process."""
    missing = [name for name in NEEDS["thresher" if server in OURS else "rival"] if not find_spec(name)]
    if missing:
        sys.exit(f'{server} needs {", ".join(missing)}, not installed here; pip install "thresher[serve]" fastapi')
    port = free_port()
    words = [sys.executable, *command(server, options, port, more)]
    process = subprocess.Popen(words, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        until = time.monotonic() + 300
        while not listening(port):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{server} did not start")
            time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def made_for_speed(run: Path) -> bool:
    """Whether a run's answers mean nothing, as those of fitted_run.py."""
    manifest = run / "thresher.json"
    return manifest.is_file() and "fitted" in json.loads(manifest.read_text(encoding="utf-8"))


def resident_mib(process: subprocess.Popen[bytes]) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--after", type=int, default=0)
    options = parser.parse_args()
    rows = read_texts(options.count, after=options.after)
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    if options.out.suffix == ".txt":
        lines = [" ".join(text.split()) for text, _ in rows]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"saved {len(lines)} texts in {options.out}")


if __name__ == "__main__":
    main()
