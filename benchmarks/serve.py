"""Servers under load: how many requests a second each can take at a bound on p95, for ours and those that people write.

python benchmarks/serve.py limit --run RUN [--int8 RUN] [--p95 500] [--turns 2]     each server, driven to that bound
python benchmarks/serve.py overload --run RUN [--seconds 600] [--degrade]           twice what it can do
python benchmarks/serve.py overhead --run RUN                                       the server beside engine.predict
python benchmarks/serve_page.py                                                     the page, from the records

Texts are labelled movie reviews, with as many of 10 to 500 tokens in every part of the range, one a request. A run that
benchmarks/fitted_run.py made answers at random: its quality stays empty. The load comes from this process, over kept
connections. One server runs at a time, in its own process; all of them take turns, forth and back. A turn: warming up,
a closed loop of 32 clients, then open loops with Poisson arrivals, whose rate goes up while p95 holds and down while it
does not, and then halves what lies between. Requests that are refused or fail count as infinitely late. Every
measurement is a line of benchmarks/serve/results.jsonl at once.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
from serve_load import Reply, all_once, closed_loop, open_loop, summed_up  # noqa: E402
from serve_servers import LONGEST, SERVERS, made_for_speed, read_texts, resident_mib, running  # noqa: E402

RECORDS = HERE / "serve" / "results.jsonl"
CLIENTS = 32
FIRST = 0.7  # of what the closed loop made: the first rate that is tried
FACTOR, HALVINGS = 1.3, 2  # between rates, and how often what lies between the best and the next is halved
ENOUGH = 80  # requests that a p95 is made of, if they come within three times the usual seconds


def keep(row: dict[str, Any], options: argparse.Namespace) -> None:
    from measuring import made_by, shown

    from thresher.records import append_record

    run = shown(options.run).rpartition("/")[2]
    whole = {"session": options.session, "model": run, **row, **made_by("serve.py")}
    append_record(options.out, whole)
    print(row, flush=True)


def search(holds: Callable[[float], bool], first: float) -> float:
    """The highest rate found that holds; 0 where none does within a tenth of the first."""
    best, worst, rate = 0.0, float("inf"), first
    while not best or worst == float("inf"):
        if holds(rate):
            best = rate
        else:
            worst = rate
        rate = best * FACTOR if best else worst / FACTOR
        if not best and rate < first / 10:
            return 0.0
    for _ in range(HALVINGS):
        rate = (best * worst) ** 0.5
        best, worst = (rate, worst) if holds(rate) else (best, rate)
    return best


def p95_of_all(replies: Sequence[Reply]) -> float:
    """In milliseconds; whoever got no answer waits for ever."""
    times = [1000 * reply.seconds if reply.status == 200 else float("inf") for reply in replies]
    return float(np.quantile(times, 0.95, method="higher"))


def limit(options: argparse.Namespace) -> None:
    bodies, labels = asked_of(options)
    servers = options.servers.split(",")
    for turn in range(options.first_turn, options.first_turn + options.turns):
        for server in servers if turn % 2 == 0 else servers[::-1]:
            with running(server, options) as (port, _):
                drive(server, turn, port, bodies, labels, options)


def drive(
    server: str, turn: int, port: int, bodies: Sequence[bytes], labels: list[str] | None, options: argparse.Namespace
) -> None:
    """One turn of one server."""
    about = {"server": server, "turn": turn}
    asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=min(4.0, options.seconds)))  # to warm up
    closed = summed_up(*asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=options.seconds)), labels)
    keep({"part": "load", **about, "loop": "closed", "clients": CLIENTS, **closed}, options)
    held: dict[float, dict[str, Any]] = {}

    def holds(rate: float) -> bool:
        seconds = min(3 * options.seconds, max(options.seconds, ENOUGH / rate))
        replies, sent = asyncio.run(open_loop(port, bodies, rate=rate, seconds=seconds, seed=turn + 1))
        found = summed_up(replies, sent, labels)
        good = p95_of_all(replies) <= options.p95
        row = {"loop": "open", "offered": round(rate, 2), "limit_ms": options.p95, "holds": good, **found}
        keep({"part": "load", **about, **row}, options)
        if good:
            held[rate] = row
        return good

    best = search(holds, FIRST * closed["requests_per_s"])
    missed = {"loop": "open", "limit_ms": options.p95, "requests_per_s": 0.0, "holds": False}
    keep({"part": "limit", **about, **held.get(best, missed)}, options)


def overload(options: argparse.Namespace) -> None:
    """Twice what the closed loop made: what is let in must be done in time, and memory must not grow."""
    bodies, labels = asked_of(options)
    more = ("--degrade", "--min-agreement", str(options.min_agreement)) if options.degrade else ()
    with running("thresher", options, *more) as (port, process):
        found = asyncio.run(closed_loop(port, bodies, clients=CLIENTS, seconds=min(10.0, options.seconds)))
        can = options.capacity or summed_up(*found, labels)["requests_per_s"]
        memory, done = [resident_mib(process)], threading.Event()

        def watch() -> None:
            while not done.wait(options.seconds / 20) and process.poll() is None:
                memory.append(resident_mib(process))

        watching = threading.Thread(target=watch)
        watching.start()
        replies, seconds = asyncio.run(open_loop(port, bodies, rate=2 * can, seconds=options.seconds))
        done.set()
        watching.join()
        let_in = [reply for reply in replies if reply.status != 429]
        in_time = sum(reply.status == 200 and reply.seconds <= options.timeout for reply in let_in)
        about = {"part": "overload", "server": "thresher, gears" if options.degrade else "thresher", "loop": "open"}
        about |= {"offered": round(2 * can, 2), "seconds": round(seconds, 1), "timeout_s": options.timeout}
        if options.degrade:
            about |= {"min_agreement": options.min_agreement, "gears": gears(options)}
        about |= summed_up(replies, seconds, labels)
        about |= {"let_in": len(let_in), "in_time": round(in_time / max(1, len(let_in)), 5)}
        statuses = {str(status): sum(reply.status == status for reply in replies) for status in (200, 429, 504)}
        about |= {"statuses": statuses, "requests": len(replies), "memory_mib": memory}
        keep({**about, "alive": process.poll() is None}, options)


def gears(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Those that the server may use, as they were measured."""
    from thresher.serving.gears import gears_within, read_measured

    found = gears_within(read_measured(options.run), least_agreement=options.min_agreement, name=str(options.run))
    return [asdict(gear) for gear in found]


def overhead(options: argparse.Namespace) -> None:
    """The same texts through engine.predict_arrays in this process, and through the server in requests of one and of
    32. And so many at a time as a server has of clients that send one: half of them wait while the others' texts are
    computed."""
    from thresher.engine.engine import Engine

    options.timeout = 600.0  # all of it may wait
    only = [text for text, _ in read_texts(options.texts)]
    engine = Engine.load(options.run, max_length=LONGEST + 12)
    engine.predict_arrays(only[:64])
    row: dict[str, Any] = {"part": "overhead", "server": "thresher"}
    for name, size in {"predict_texts_per_s": len(only), "predict_texts_per_s_by_clients": CLIENTS // 2}.items():
        times = []
        for _ in range(3):
            began = time.perf_counter()
            for start in range(0, len(only), size):
                engine.predict_arrays(only[start : start + size])
            times.append(time.perf_counter() - began)
        row[name] = round(len(only) / min(times), 2)
    del engine
    with running("thresher", options) as (port, _):
        for size in (1, 32):
            groups = [only[start : start + size] for start in range(0, len(only), size)]
            bodies = [json.dumps({"inputs": [[text] for text in group]}).encode() for group in groups]
            best = min(asyncio.run(all_once(port, bodies, clients=CLIENTS)) for _ in range(3))
            row[f"texts_per_s_requests_of_{size}"] = round(len(only) / best, 2)
    keep(row, options)


def asked_of(options: argparse.Namespace) -> tuple[list[bytes], list[str] | None]:
    """All requests, and what is right for each; nothing is where the run was made for speed alone."""
    texts = read_texts(options.texts)
    labels = None if made_for_speed(options.run) else [label for _, label in texts]
    return [json.dumps({"inputs": text}).encode() for text, _ in texts], labels


PARTS = {"limit": limit, "overload": overload, "overhead": overhead}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--run", type=Path, required=True, help="of a classifier of movie reviews, such as the demo's")
    parser.add_argument("--int8", type=Path, help="the same run after thresher quantize, for server `thresher int8`")
    parser.add_argument("--servers", help="some of them, with commas between")
    parser.add_argument("--seconds", type=float, default=8.0, help="of every measurement")
    parser.add_argument("--p95", type=float, default=500.0, help="bound in milliseconds at which servers are compared")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--first-turn", type=int, default=0, help="to take the turns of a session in several commands")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--timeout", type=float, default=5.0, help="deadline of a request, in seconds")
    parser.add_argument("--capacity", type=float, help="of part overload, where it was measured before")
    parser.add_argument("--degrade", action="store_true", help="part overload: with the gears of the run")
    parser.add_argument("--min-agreement", type=float, default=0.9)
    parser.add_argument("--session", default="quiet", help="a name for measurements that may be compared")
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    known = [name for name in SERVERS if options.int8 is not None or name != "thresher int8"]
    options.servers = options.servers or ",".join(known)
    unknown = [name for name in options.servers.split(",") if name not in known]
    if unknown:
        parser.error(f"server {unknown[0]!r} is not one of: {', '.join(known)}; thresher int8 needs --int8")
    with tempfile.TemporaryDirectory() as options.work:
        PARTS[options.part](options)


if __name__ == "__main__":
    main()
