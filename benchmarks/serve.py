"""Servers under load: requests a second and their times, against load, for ours and those that people write.

python benchmarks/serve.py curve --run RUN [--servers thresher,fastapi] [--seconds 12]  each server at rising loads
python benchmarks/serve.py overload --run RUN [--seconds 600] [--degrade]           twice what it can do
python benchmarks/serve.py overhead --run RUN                                       the server beside engine.predict
python benchmarks/serve.py core --run RUN --device cuda                             queue and engine, without HTTP
python benchmarks/serve.py table                                                    the page, from the records

Parts can be measured one after the other: every measurement is a line of benchmarks/serve/results.jsonl at once. Texts
are labelled movie reviews, with as many of 10 to 500 tokens in every part of the range, one a request. The load comes
from a process of its own, over kept connections. Open loop: Poisson arrivals, and times count from when a request was
due, sent or not. Closed loop: so many clients, each with the next request when it has its answer.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "serve" / "results.jsonl"
PAGE = HERE / "serve" / "README.md"
SERVERS = ("thresher", "thresher dense", "fastapi", "fastapi batching", "onnxruntime int8 batching")
KINDS = {"fastapi": "plain", "fastapi batching": "batching", "onnxruntime int8 batching": "onnx"}
NEEDS = {"thresher": ("starlette", "uvicorn", "msgspec", "prometheus_client"), "rival": ("fastapi", "uvicorn")}
LOADS = (0.5, 0.8, 0.95)  # of what the closed loop made
CLIENTS = 32
P95_MS = 500.0  # the bound at which servers are compared
SHORTEST, LONGEST = 10, 500  # tokens


@dataclass(frozen=True)
class Reply:
    """One request: when it was due, how long it took from then, its status, and its label."""

    seconds: float
    status: int
    label: str | None
    text: int


# ---- texts


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


# ---- load


class Connection:
    """One kept connection, without a library's costs."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def post(self, body: bytes, path: str = "/predict") -> tuple[int, Any]:
        for attempt in range(2):
            try:
                if self.writer is None:
                    self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
                head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                return await self._reply()
            except (OSError, asyncio.IncompleteReadError):
                self.writer = None
                if attempt:
                    raise
        raise AssertionError("unreachable")

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            await self.writer.wait_closed()

    async def _reply(self) -> tuple[int, Any]:
        status = int((await self.reader.readuntil(b"\r\n")).split()[1])
        length = 0
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, json.loads(await self.reader.readexactly(length))


async def timed(one: Connection, bodies: Sequence[bytes], number: int, due: float) -> Reply:
    try:
        status, found = await one.post(bodies[number])
    except (OSError, asyncio.IncompleteReadError):
        return Reply(time.perf_counter() - due, 0, None, number)
    label = found[0]["label"] if status == 200 else None
    return Reply(time.perf_counter() - due, status, label, number)


async def closed_loop(port: int, bodies: Sequence[bytes], *, clients: int, seconds: float) -> tuple[list[Reply], float]:
    """Replies, and in how many seconds."""
    found: list[Reply] = []
    began = time.perf_counter()
    numbers = iter(range(10**9))

    async def client() -> None:
        one = Connection(port)
        while time.perf_counter() - began < seconds:
            found.append(await timed(one, bodies, next(numbers) % len(bodies), time.perf_counter()))
        await one.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return found, time.perf_counter() - began


async def open_loop(port: int, bodies: Sequence[bytes], *, rate: float, seconds: float) -> tuple[list[Reply], float]:
    drawn = random.Random(1)
    idle: list[Connection] = []
    found: list[Reply] = []
    tasks = set()

    async def ask(number: int, due: float) -> None:
        one = idle.pop() if idle else Connection(port)
        found.append(await timed(one, bodies, number, due))
        idle.append(one)

    began = due = time.perf_counter()
    number = 0
    while due - began < seconds:
        due += drawn.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(ask(number % len(bodies), due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    sent = time.perf_counter() - began
    await asyncio.gather(*tasks)
    await asyncio.gather(*(one.close() for one in idle))
    return found, sent


def summed_up(replies: Sequence[Reply], seconds: float, texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """quality: accuracy of the answers given."""
    good = [reply for reply in replies if reply.status == 200]
    times = 1000 * np.array([reply.seconds for reply in good] or [float("nan")])
    p50, p95, p99 = (round(float(value), 1) for value in np.quantile(times, (0.5, 0.95, 0.99)))
    right = [reply.label == texts[reply.text][1] for reply in good]
    return {
        "requests_per_s": round(len(good) / seconds, 2),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "refused": sum(reply.status == 429 for reply in replies),
        "failed": sum(reply.status not in (200, 429) for reply in replies),
        "answered": len(good),
        "quality": round(float(np.mean(right)), 4) if right else None,
    }


# ---- servers


@contextmanager
def running(server: str, options: argparse.Namespace, *more: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server in a process of its own, for the length of a `with`: its port and its process."""
    missing = [name for name in NEEDS["thresher" if server.startswith("thresher") else "rival"] if not find_spec(name)]
    if missing:
        sys.exit(f'{server} needs {", ".join(missing)}, not installed here; pip install "thresher[serve]" fastapi')
    port = free_port()
    if server.startswith("thresher"):
        words = ["-m", "thresher", "serve", f"run={options.run}", "--port", str(port), "--log-level", "error", *more]
        words += ["--device", options.device, "--timeout", str(options.timeout), "--max-length", str(LONGEST + 12)]
        words += ["--dial", "0"] if server == "thresher dense" else []
    else:
        dense = options.run / "dense"
        folder = dense if dense.is_dir() else options.run
        words = [str(HERE / "serve_rivals.py"), str(folder), "--kind", KINDS[server], "--port", str(port)]
        words += ["--max-length", str(LONGEST + 12)]
    process = subprocess.Popen([sys.executable, *words], env={**os.environ, "HF_HUB_OFFLINE": "1"})
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
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def keep(row: dict[str, Any], options: argparse.Namespace) -> None:
    from measuring import made_by, shown

    from thresher.records import append_record

    whole = {
        "session": options.session,
        "model": shown(options.run),
        "device_type": options.device,
        **row,
        **made_by("serve.py", device=options.device),
    }
    append_record(options.out, whole)
    print({name: value for name, value in row.items() if name != "curve"}, flush=True)


# ---- parts


def curve(options: argparse.Namespace) -> None:
    """The closed loop says what a server can do; then open loops at shares of that."""
    texts = read_texts(options.texts)
    bodies = [json.dumps({"inputs": text}).encode() for text, _ in texts]
    for server in options.servers.split(","):
        with running(server, options) as (port, _):
            asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=min(5.0, options.seconds)))  # to warm up
            found = asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=options.seconds))
            summary = summed_up(*found, texts)
            keep({"part": "curve", "server": server, "loop": "closed", "clients": CLIENTS, **summary}, options)
            for share in LOADS:
                rate = share * summary["requests_per_s"]
                found = asyncio.run(open_loop(port, bodies, rate=rate, seconds=options.seconds))
                row = {"part": "curve", "server": server, "loop": "open", "load": share, "offered": round(rate, 2)}
                keep({**row, **summed_up(*found, texts)}, options)


def overload(options: argparse.Namespace) -> None:
    """Twice what the closed loop made: what is let in must be done in time, and memory must not grow."""
    texts = read_texts(options.texts)
    bodies = [json.dumps({"inputs": text}).encode() for text, _ in texts]
    more = ("--degrade", "--min-agreement", str(options.min_agreement)) if options.degrade else ()
    with running("thresher", options, *more) as (port, process):
        found = asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=min(10.0, options.seconds)))
        can = options.capacity or summed_up(*found, texts)["requests_per_s"]
        before = resident_mib(process)
        replies, seconds = asyncio.run(open_loop(port, bodies, rate=2 * can, seconds=options.seconds))
        summary = summed_up(replies, seconds, texts)
        good = [reply for reply in replies if reply.status in (200, 504)]
        in_time = sum(reply.status == 200 and reply.seconds <= options.timeout for reply in good) / max(1, len(good))
        about = {"part": "overload", "server": "thresher, gears" if options.degrade else "thresher", "loop": "open"}
        about |= {"offered": round(2 * can, 2), "seconds": round(seconds, 1), "timeout_s": options.timeout}
        memory = {"mib_before": round(before, 1), "mib_after": round(resident_mib(process), 1)}
        keep({**about, **summary, "in_time": round(in_time, 5), **memory, "alive": process.poll() is None}, options)


def overhead(options: argparse.Namespace) -> None:
    """The same texts through engine.predict in this process, and through the server in requests of one and of 32."""
    from thresher.engine.engine import Engine

    texts, options.timeout = read_texts(options.texts), 600.0  # all of it may wait
    only = [text for text, _ in texts]
    engine = Engine.load(options.run, device=options.device, max_length=LONGEST + 12)
    engine.predict_arrays(only[:64])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        engine.predict_arrays(only)
        times.append(time.perf_counter() - began)
    alone = len(only) / min(times)
    del engine
    row: dict[str, Any] = {"part": "overhead", "server": "thresher", "predict_texts_per_s": round(alone, 2)}
    with running("thresher", options) as (port, _):
        for size in (1, 32):
            groups = [only[start : start + size] for start in range(0, len(only), size)]
            bodies = [json.dumps({"inputs": [[text] for text in group]}).encode() for group in groups]
            best = min(asyncio.run(_all_once(port, bodies)) for _ in range(3))
            row[f"texts_per_s_requests_of_{size}"] = round(len(only) / best, 2)
    keep(row, options)


async def _all_once(port: int, bodies: Sequence[bytes]) -> float:
    left = list(reversed(bodies))
    began = time.perf_counter()

    async def client() -> None:
        one = Connection(port)
        while left:
            status, _ = await one.post(left.pop())
            assert status == 200
        await one.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - began


def core(options: argparse.Namespace) -> None:
    """Queue, batches and engine without HTTP: closed loop, then half of that as an open one."""
    from thresher.serving.queue import Limits
    from thresher.serving.run import Ask, ServedRun, Setting

    texts = read_texts(options.texts)
    limits = Limits(timeout_s=options.timeout)
    run = ServedRun.load(
        Setting(path=str(options.run), name="run", device=options.device, max_length=LONGEST + 12, limits=limits)
    )
    run.engine.warm_up([text for text, _ in texts[:256]])
    run.start()

    async def one(number: int, due: float) -> Reply:
        answer = await run.compute([texts[number][0]], Ask(), patience=60)
        return Reply(time.perf_counter() - due, 200, str(answer.answers.labels[0]), number)

    async def closed(clients: int, seconds: float) -> tuple[list[Reply], float]:
        found: list[Reply] = []
        began, numbers = time.perf_counter(), iter(range(10**9))

        async def client() -> None:
            while time.perf_counter() - began < seconds:
                found.append(await one(next(numbers) % len(texts), time.perf_counter()))

        await asyncio.gather(*(client() for _ in range(clients)))
        return found, time.perf_counter() - began

    async def opened(rate: float, seconds: float) -> tuple[list[Reply], float]:
        drawn, began, tasks, number = random.Random(1), time.perf_counter(), [], 0
        due = began
        while due - began < seconds:
            due += drawn.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one(number % len(texts), due)))
            number += 1
        sent = time.perf_counter() - began
        return list(await asyncio.gather(*tasks)), sent

    async def both() -> None:
        clients = options.clients or (CLIENTS if options.device == "cpu" else 1024)
        await closed(clients, 3.0)
        found = summed_up(*await closed(clients, options.seconds), texts)
        keep({"part": "core", "server": "thresher core", "loop": "closed", "clients": clients, **found}, options)
        rate = found["requests_per_s"] / 2
        half = summed_up(*await opened(rate, options.seconds), texts)
        keep({"part": "core", "server": "thresher core", "loop": "open", "load": 0.5, "offered": rate, **half}, options)

    asyncio.run(both())
    run.close()
    run.worker.join(10)


def table(options: argparse.Namespace) -> None:
    """The last measurement of everything, for people."""
    rows = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    keys = ("session", "model", "part", "server", "loop", "load")
    latest = {tuple(row.get(key) for key in keys): row for row in rows}
    head = "| session | model | server | loop | requests/s | p50 ms | p95 ms | p99 ms | refused | accuracy |"
    lines = ["<!-- serve -->", head, "|---|---|---|---|---|---|---|---|---|---|"]
    for row in latest.values():
        if "p50_ms" not in row:
            continue
        loop = row["loop"] + (f", {row['load']:g} of it" if row.get("load") else "")
        loop += " twice over" if row["part"] == "overload" else ""
        cells = [row["session"], row["model"].rpartition("/")[2], row["server"], loop, f"{row['requests_per_s']:.1f}"]
        cells += [f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")]
        quality = "-" if row["quality"] is None else f"{100 * row['quality']:.1f}"
        lines.append("| " + " | ".join([*cells, str(row["refused"]), quality]) + " |")
    lines.append("<!-- end -->")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- serve -->")
    PAGE.write_text(before + "\n".join(lines) + rest.partition("<!-- end -->")[2], encoding="utf-8")


PARTS = {"curve": curve, "overload": overload, "overhead": overhead, "core": core, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--run", type=Path, help="a run of a classifier of movie reviews, such as the demo's")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=12.0, help="of every measurement")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--timeout", type=float, default=5.0, help="deadline of a request, in seconds")
    parser.add_argument("--clients", type=int, help="of the closed loop of part core")
    parser.add_argument("--capacity", type=float, help="of part overload, where it was measured before")
    parser.add_argument("--degrade", action="store_true", help="part overload: with the gears of the run")
    parser.add_argument("--min-agreement", type=float, default=0.9)
    parser.add_argument("--session", default="quiet", help="a name for measurements that may be compared")
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    unknown = [name for name in options.servers.split(",") if name not in SERVERS]
    if unknown:
        parser.error(f"server {unknown[0]!r} is not one of: {', '.join(SERVERS)}")
    if options.part != "table" and options.run is None:
        parser.error("--run is missing")
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
