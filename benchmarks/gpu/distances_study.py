"""Attention with products of distances (DeBERTa-v3-base's shape) in several ways, on a CUDA device.

    PYTHONPATH=src python benchmarks/gpu/distances_study.py --out FILE [--seconds 60] [--only NAME ...]

Every variant of distances_variants.py has a process of its own. All compile at the same time, and are checked against
exact values on runs of many lengths, with gaps in the positions; then one after the other is measured in captured
graphs: microseconds of one layer's attention, tables included, and of the tables alone. A variant that fails is a
record with its error. `--tiny` does all of it under TRITON_INTERPRET=1, without a GPU and without a measurement.
"""

import argparse
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attention_case import DEVICE, DTYPE
from attention_study import microseconds, off
from book import Book
from distances_variants import VARIANTS, set_up
from setting import made_by
from torch import Tensor

from thresher.engine.kernels import attention as engine
from thresher.engine.kernels.attention import attention, attention_reference
from thresher.engine.kernels.distances import Distances
from thresher.models.deberta import rows_of_distances

TOKENS, RAGGED, WIDTH, SPAN = 16384, (10, 128), 64, 256
# Lengths of runs; "half of": every second token was dropped on average, as in a pruned engine's later layers.
SHAPES = ("512", "half of 512", "ragged", "256", "1024", "128")
PARTS: dict[str, dict[str, Any]] = {
    "plain": {"score": None},
    "scored": {"score": "attention"},
    "scored by one query in 8": {"score": "attention", "score_queries": 8},
}
CHECKED = (600, 1, 128, 67, 511, 256, 64, 65, 129)
ENOUGH = 4e-3  # relative error of float16 arithmetic; a wrong distance is far beyond
ANSWER = 20.0  # seconds in which a process has measured something, or is ended


class Case:
    """One packed batch: runs of given lengths, and rows behind the last that hold no number."""

    def __init__(self, lengths: list[int], *, heads: int, gaps: bool) -> None:
        here, host = (torch.Generator(device).manual_seed(1) for device in (DEVICE, "cpu"))
        drawn = partial(torch.randn, generator=here, device=DEVICE, dtype=DTYPE)
        self.heads, self.tokens, self.longest = heads, sum(lengths), max(lengths)
        self.starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
        self.qkv = drawn(self.tokens + 77, 3 * heads * WIDTH)
        self.qkv[self.tokens :] = math.nan
        kept = (torch.randperm(2 * n, generator=host)[:n].sort().values for n in lengths)
        places = torch.cat(list(kept) if gaps else [torch.arange(n) for n in lengths])
        self.positions = torch.cat([places, torch.zeros(77, dtype=torch.long)]).int().to(DEVICE)
        reach = 2 * self.longest
        rows = rows_of_distances(SPAN, SPAN, 512, longest=reach, device=torch.device("cpu"))
        index = rows[torch.arange(1 - reach, reach).clamp(-(len(rows) // 2), len(rows) // 2) + len(rows) // 2]
        keys, queries = drawn(heads, 2 * SPAN, WIDTH), drawn(heads, 2 * SPAN, WIDTH)
        self.distances = Distances(keys, queries, index.int().to(DEVICE))

    def named(self) -> dict[str, Any]:
        given = {"heads": self.heads, "max_length": self.longest, "positions": self.positions}
        return {**given, "divisor": math.sqrt(3 * WIDTH)}

    def call(self, part: str) -> Callable[[], Any]:
        if part == "tables":
            return partial(
                engine.distance_products,
                self.qkv,
                self.starts,
                self.positions,
                self.distances,
                max_length=self.longest,
            )
        named = {**self.named(), "distances": self.distances, "typical": self.longest}
        return partial(attention, self.qkv, self.starts, **named, **PARTS[part])

    def exact(self, part: str) -> tuple[Tensor, Tensor | None]:
        given = self.distances
        assert given.keys is not None and given.queries is not None  # both are drawn
        exact = Distances(given.keys.float(), given.queries.float(), given.index)
        return attention_reference(self.qkv.float(), self.starts, **self.named(), distances=exact, **PARTS[part])


def case_of(shape: str) -> Case:
    if shape == "ragged":
        drawn = torch.randint(*RAGGED, (TOKENS * 2 // sum(RAGGED),), generator=torch.Generator().manual_seed(1))
        return Case(drawn.tolist(), heads=12, gaps=False)
    gaps = shape.startswith("half of")
    length = int(shape.split()[-1]) // (2 if gaps else 1)
    return Case([length] * (TOKENS // length), heads=12, gaps=gaps)


def error_of(tiny: bool) -> float:
    """The largest relative error of all parts, with and without gaps; infinite where a second call gives others."""
    worst = 0.0
    for gaps in (True, False):
        case = Case([70, 1] if tiny else list(CHECKED), heads=1 if tiny else 12, gaps=gaps)
        for part in PARTS:
            found, again, exact = case.call(part)(), case.call(part)(), case.exact(part)
            live = slice(0, case.tokens)
            worst = max(worst, off(found[0][live], exact[0][live]))
            same = torch.equal(found[0][live], again[0][live])
            if found[1] is not None and again[1] is not None and exact[1] is not None:
                worst = max(worst, off(found[1][:, live], exact[1][:, live]))
                same = same and torch.equal(found[1][:, live], again[1][:, live])
            worst = worst if same else math.inf
    return worst


def work(name: str, tiny: bool, line: Any) -> None:
    """In a process of its own: set up, compile, check and say so; then measure what is asked for."""
    torch.set_num_threads(1)
    try:
        began = time.perf_counter()
        set_up(VARIANTS[name])
        line.send({"error_size": error_of(tiny), "seconds": round(time.perf_counter() - began, 1)})
    except Exception as error:
        line.send({"failed": f"{type(error).__name__}: {str(error)[:300]}"})
        return
    cases: dict[str, Case] = {}
    while True:  # until the process is ended
        shape, part = line.recv()
        try:
            if shape not in cases:
                cases = {shape: Case([70, 33], heads=1, gaps=True) if tiny else case_of(shape)}
            call = cases[shape].call(part)
            line.send({"microseconds": None if tiny and call() else microseconds(call)})
        except Exception as error:
            line.send({"failed": f"{type(error).__name__}: {str(error)[:200]}"})


class Worker:
    """A variant's process, and what it says."""

    def __init__(self, name: str, *, tiny: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.line, other = context.Pipe()
        self.process = context.Process(target=work, args=(name, tiny, other), daemon=True)
        self.process.start()
        other.close()

    def said(self, seconds: float = ANSWER) -> dict[str, Any]:
        try:
            if self.line.poll(seconds):
                return dict(self.line.recv())
        except EOFError:
            pass
        self.process.kill()
        return {"failed": "its process hung or ended"}

    def asked(self, shape: str, part: str) -> dict[str, Any]:
        try:
            self.line.send((shape, part))
        except OSError:
            return {"failed": "its process has ended"}
        return self.said()


def parts_of(name: str) -> list[str]:
    """Tables are the same in all ways that have them."""
    return [*(["tables"] if name == "engine" else []), *PARTS]


def table(rows: list[dict[str, Any]]) -> None:
    """Microseconds by variant, and how many times as fast as the former way."""
    for shape, part in itertools.product(SHAPES, ("tables", *PARTS)):
        here = {row["variant"]: row["microseconds"] for row in rows if (row["n"], row["part"]) == (shape, part)}
        former = here.get("former")
        times = (f"{name} {us:.0f}" + (f" ({former / us:.2f}x)" if former else "") for name, us in here.items())
        if here:
            print(f"n = {shape}, {part}: {', '.join(times)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON lines are added to this file")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS), help="these variants")
    parser.add_argument("--tiny", action="store_true", help="in the interpreter: measure nothing")
    arguments = parser.parse_args()
    made = made_by("gpu/distances_study.py", device=DEVICE)
    short = {name: made[name] for name in ("commit", "created")}  # of every row; the first has all
    book = Book(Path(arguments.out), short, key=("variant", "part", "n"), seconds=arguments.seconds)
    print(f"{book}; {len(arguments.only)} variants", flush=True)
    book.add(part="about", tokens=TOKENS, **made)
    right, rows = [], []
    step = 1 if arguments.tiny else len(arguments.only)
    for first in range(0, len(arguments.only), step):
        workers = [Worker(name, tiny=arguments.tiny) for name in arguments.only[first : first + step]]
        for worker in workers:
            found = worker.said(max(1.0, book.left))
            book.add(variant=worker.name, part="check", about=str(VARIANTS[worker.name]), **found)
            print(f"checked: {worker.name}: {found}, after {book.spent:.0f} s", flush=True)
            if found.get("error_size", math.inf) < ENOUGH:
                right.append(worker)
            else:
                worker.process.kill()
    for shape in SHAPES[:1] if arguments.tiny else SHAPES:
        for worker, part in [(one, part) for one in right for part in parts_of(one.name)]:
            if not book.wants(variant=worker.name, part=part, n=shape):
                continue
            found = worker.asked(shape, part)
            book.add(variant=worker.name, part=part, n=shape, **found)
            rows.append({"variant": worker.name, "part": part, "n": shape, **found})
            if "failed" in found:
                print("failed:", rows[-1], flush=True)
    table([row for row in rows if row.get("microseconds") is not None])
    for worker in right:
        worker.process.kill()
    book.end()


if __name__ == "__main__":
    main()
