"""The load of the serving benchmarks: closed loops, open loops with Poisson arrivals, from one process or several.

Connections are kept, and speak HTTP without a library's costs. Open loop: times count from when a request was due, sent
or not. Closed loop: so many clients, each with the next request when it has its answer.
"""

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Reply:
    """One request: how long it took from when it was due, its status, the label of its first text, and its number."""

    seconds: float
    status: int
    label: str | None
    number: int


class Connection:
    """One kept connection, opened when it is needed, and once more where the server has closed it."""

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
        head = await self.reader.readuntil(b"\r\n\r\n")
        _, _, rest = head.lower().partition(b"content-length:")
        return int(head.split(None, 2)[1]), json.loads(await self.reader.readexactly(int(rest.split(None, 1)[0])))


async def timed(one: Connection, bodies: Sequence[bytes], number: int, due: float) -> Reply:
    try:
        status, found = await one.post(bodies[number])
    except (OSError, asyncio.IncompleteReadError):
        return Reply(time.perf_counter() - due, 0, None, number)
    first = found[0] if status == 200 else None
    label = None if first is None else (first[0] if isinstance(first, list) else first)["label"]
    return Reply(time.perf_counter() - due, status, label, number)


async def closed_loop(
    port: int, bodies: Sequence[bytes], *, clients: int, seconds: float, seed: int = 1
) -> tuple[list[Reply], float]:
    """Replies, and in how many seconds. `seed` says with which body it begins."""
    found: list[Reply] = []
    began = time.perf_counter()
    first = random.Random(seed).randrange(len(bodies))
    numbers = iter(range(first, 10**9))

    async def client() -> None:
        one = Connection(port)
        while time.perf_counter() - began < seconds:
            found.append(await timed(one, bodies, next(numbers) % len(bodies), time.perf_counter()))
        await one.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return found, time.perf_counter() - began


async def open_loop(
    port: int, bodies: Sequence[bytes], *, rate: float, seconds: float, seed: int = 1
) -> tuple[list[Reply], float]:
    """Replies to all requests of so many seconds, and the seconds in which they were sent."""
    drawn = random.Random(seed)
    idle: list[Connection] = []
    found: list[Reply] = []
    tasks = set()

    async def ask(number: int, due: float) -> None:
        one = idle.pop() if idle else Connection(port)
        found.append(await timed(one, bodies, number, due))
        idle.append(one)

    began = due = time.perf_counter()
    number = drawn.randrange(len(bodies))
    while (due := due + drawn.expovariate(rate)) - began < seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(ask(number % len(bodies), due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks)
    await asyncio.gather(*(one.close() for one in idle))
    return found, seconds


async def all_once(port: int, bodies: Sequence[bytes], *, clients: int) -> float:
    """Seconds in which all bodies are answered once."""
    left = list(reversed(bodies))
    began = time.perf_counter()

    async def client() -> None:
        one = Connection(port)
        while left:
            status, _ = await one.post(left.pop())
            if status != 200:
                raise SystemExit(f"a request got {status}; all were to be answered")
        await one.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began


class Processes:
    """The same loops from several processes at once, each with its share of the clients or of the rate."""

    def __init__(self, count: int, port: int, bodies: Sequence[bytes]) -> None:
        self.count = count
        self._pool = multiprocessing.get_context("spawn").Pool(count, _take, (port, bodies))

    def closed(self, *, clients: int, seconds: float) -> tuple[list[Reply], float]:
        return self._all("closed", {"clients": max(1, clients // self.count), "seconds": seconds})

    def open(self, *, rate: float, seconds: float) -> tuple[list[Reply], float]:
        return self._all("open", {"rate": rate / self.count, "seconds": seconds})

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()

    def _all(self, kind: str, how: dict[str, Any]) -> tuple[list[Reply], float]:
        asked = [(kind, {**how, "seed": seed}) for seed in range(self.count)]
        parts = self._pool.starmap(_work, asked, chunksize=1)
        return [reply for replies, _ in parts for reply in replies], max(seconds for _, seconds in parts)


_given: list[Any] = []  # of one process of the pool: port and bodies


def _take(port: int, bodies: Sequence[bytes]) -> None:
    _given[:] = [port, bodies]


def _work(kind: str, how: dict[str, Any]) -> tuple[list[Reply], float]:
    return asyncio.run((closed_loop if kind == "closed" else open_loop)(*_given, **how))


def summed_up(replies: Sequence[Reply], seconds: float, labels: Sequence[str] | None) -> dict[str, Any]:
    """quality: accuracy of the answers given, where `labels` says what is right for each body."""
    good = [reply for reply in replies if reply.status == 200]
    times = 1000 * np.array([reply.seconds for reply in good] or [float("nan")])
    p50, p95, p99 = (round(float(value), 1) for value in np.quantile(times, (0.5, 0.95, 0.99)))
    right = [] if labels is None else [reply.label == labels[reply.number] for reply in good]
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
