"""The server on a GPU: requests a second, and p99 at half of that, over the loopback of one machine.

PYTHONPATH=src python3 benchmarks/serve_gpu.py [--texts qnli/validation.jsonl.xz] [--seconds 6] [--dense]
PYTHONPATH=src python3 benchmarks/serve_gpu.py --no-model [--processes 1]

A base-size model with random weights, thresholds set so that every layer keeps as many tokens as one trained on QNLI
(see end_to_end.py), is saved as a run and served by `thresher serve`'s own job in a process of its own. The load comes
from --processes others: requests of 1 and of 32 pairs, first a closed loop of --clients, then Poisson arrivals at half
of what that made. The first --first seconds of the closed loop, which follow at once when the server listens, stand
apart, and so do the graphs that were captured meanwhile, which /info counts. Beside it stands engine.predict_arrays on
the same pairs. Answers mean nothing: `quality` is empty. With --no-model nothing is computed (serve_no_model.py), on
any machine: what one process can receive, tokenize, batch and answer.
Without --texts, words are made up. Where uvicorn, msgspec and prometheus_client are not installed, a folder
with their unpacked wheels in PYTHONPATH is enough. With --device cpu --tiny the script itself can be tried.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
from serve_load import Processes, summed_up  # noqa: E402

RECORDS = HERE / "serve" / "results.jsonl"
NEEDS = ("uvicorn", "msgspec", "prometheus_client")
SIZES = (1, 32)  # pairs of a request
SERVER = "import sys, json; from thresher.jobs.serve import serve; serve([sys.argv[1]], **json.loads(sys.argv[2]))"
NO_MODEL = "import sys, json; from serve_no_model import *; serve_without_model(sys.argv[1], **json.loads(sys.argv[2]))"
START_S = 300  # the longest time until a server listens


def make_run(folder: Path, options: argparse.Namespace) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Save the run; the pairs, and what engine.predict_arrays makes of them."""
    from end_to_end import PARTS, found_thresholds, made_up_pairs, random_model, read_pairs, trained_tokenizer

    from thresher.config import PruneConfig
    from thresher.engine.engine import Engine
    from thresher.models.attach import gates_of, prune_
    from thresher.models.checkpoint import save

    pairs = read_pairs(options.texts) if options.texts else made_up_pairs(64 if options.tiny else 4096)
    tokenizer = trained_tokenizer([text for pair in pairs[:5000] for text in pair])
    model = random_model(PARTS["qnli"], words=len(tokenizer), tiny=options.tiny)
    config = PruneConfig(score="value")
    dense = Engine.from_model(model, tokenizer, device=options.device)
    found = found_thresholds(model, dense, pairs[:128], config, options.device)
    prune_(model, config)
    gates_of(model).set_thresholds(found)
    save(model, tokenizer, folder, about={"for": "speed alone: random weights, fitted thresholds, nothing trained"})
    engine = Engine.from_model(model, tokenizer, device=options.device)
    many = (pairs * (-(-options.count // len(pairs))))[: options.count]
    if options.no_model:
        return pairs, {}
    engine.warm_up(many[:4096])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        engine.predict_arrays(many)
        times.append(time.perf_counter() - began)
    about = engine.describe()
    return pairs, {"predict_texts_per_s": round(len(many) / min(times)), "dtype": about["dtype"]}


@contextmanager
def serving(folder: Path, options: argparse.Namespace, *, dial: float) -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    how = {"port": port, "device": options.device, "dial": dial, "log_level": "error", "timeout": 30.0}
    how |= {"connections": 4096, "batch_seconds": options.batch_seconds}
    code = NO_MODEL if options.no_model else SERVER
    words = [sys.executable, "-c", code, f"run={folder}", json.dumps(how)]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(words, env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path})
    try:
        until = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < until:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit("the server did not start; what it says stands above")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def info(port: int) -> dict[str, Any]:
    """What the server says of its only run."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/info", timeout=30) as reply:
        (run,) = json.load(reply)["runs"]
        return dict(run)


def graphs(port: int) -> int:
    """CUDA graphs that it has captured so far."""
    return int(info(port).get("graphs", 0))


def measure(
    port: int, size: int, pairs: list[tuple[str, str]], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Closed loop, its first seconds and the rest, then half of it as an open one."""
    groups = [pairs[start : start + size] for start in range(0, len(pairs) - size + 1, size)]
    bodies = [json.dumps({"inputs": group[0] if size == 1 else group}).encode() for group in groups]
    clients = options.clients if size == 1 else max(options.processes, options.clients // 8)
    load = Processes(options.processes, port, bodies)
    try:
        about = {"texts_a_request": size, "processes": options.processes}
        for part, seconds in {"first seconds": options.first, "afterwards": options.seconds}.items():
            before = graphs(port)
            found = summed_up(*load.closed(clients=clients, seconds=seconds), None)
            loop = {"loop": "closed", "when": part, "seconds": seconds, "clients": clients}
            yield {**about, **loop, **found, "graphs_captured": graphs(port) - before}
        rate, before = found["requests_per_s"] / 2, graphs(port)
        half = summed_up(*load.open(rate=rate, seconds=options.seconds), None)
        loop = {"loop": "open", "load": 0.5, "offered": round(rate, 1), "seconds": options.seconds}
        yield {**about, **loop, **half, "graphs_captured": graphs(port) - before}
    finally:
        load.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="pairs of texts: .jsonl or tab-separated, also .gz and .xz")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=6.0, help="of every measurement")
    parser.add_argument("--first", type=float, default=5.0, help="seconds of the closed loop that stand apart")
    parser.add_argument("--clients", type=int, default=512, help="of requests of one; an eighth of it of 32")
    parser.add_argument("--processes", type=int, default=8, help="that make the load")
    parser.add_argument("--batch-seconds", type=float, default=0.02, help="about how long a batch should take")
    parser.add_argument("--count", type=int, default=32_768, help="pairs for engine.predict_arrays")
    parser.add_argument("--dense", action="store_true", help="measure dial 0, too")
    parser.add_argument("--no-model", action="store_true", help="the server alone: nothing is computed")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script itself")
    parser.add_argument("--out", type=Path, default=RECORDS, help="JSON lines are added to this file")
    options = parser.parse_args()
    if options.no_model:
        options.tiny, options.device, options.dense = True, "cpu", False
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} not found; put a folder with the unpacked wheels into PYTHONPATH")
    from measuring import made_by

    from thresher.records import append_record

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        pairs, alone = make_run(Path(work) / "run", options)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"made the run, {time.perf_counter() - began:.0f} s: {alone}", flush=True)
        for server, dial in {"thresher": 1.0, **({"thresher dense": 0.0} if options.dense else {})}.items():
            with serving(Path(work) / "run", options, dial=dial) as port:
                warm_up = info(port)["warm_up"]
                print(f"{server} listens, {time.perf_counter() - began:.0f} s; warm-up: {warm_up}", flush=True)
                for size in SIZES:
                    for row in measure(port, size, pairs, options):
                        about = {"part": "gpu", "model": "base size, random weights, QNLI", "warm_up": warm_up}
                        if options.no_model:
                            about = {"part": "http", "model": "none"}
                        whole = {**about, "server": server, **row}
                        whole["texts_per_s"] = round(size * row["requests_per_s"])
                        made = made_by("serve_gpu.py", device=options.device)
                        append_record(
                            options.out, {"session": "gpu", "device_type": options.device, **whole, **alone, **made}
                        )
                        print(whole, flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
