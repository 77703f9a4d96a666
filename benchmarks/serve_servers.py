"""The servers of the serving benchmark, each in a process of its own, and the texts that are sent to them."""

import argparse
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
NEEDS = {"thresher": ("starlette", "uvicorn", "msgspec", "prometheus_client"), "rival": ("fastapi", "uvicorn")}
SHORTEST, LONGEST = 10, 500  # tokens


def read_texts(count: int) -> list[tuple[str, str]]:
    """(text, label), lengths spread evenly between 10 and 500 tokens, counted as four thirds of the words."""
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
    each = -(-count // len(bins))
    found = [row for part in bins.values() for row in part[:each]][:count]
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


def resident_mib(process: subprocess.Popen[bytes]) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return round(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024, 1)
