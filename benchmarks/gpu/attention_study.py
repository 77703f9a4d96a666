"""Attention in many forms against what the library offers, packed runs, on a CUDA device.

    python benchmarks/gpu/attention_study.py --out FILE [--seconds 100] [--processes 13]

Processes compile and check shares of the variants at the same time (Triton keeps what it compiled on disk); then this
one measures those that are right. A variant that fails is a record with its error. `--engine` leaves the variants out:
what the engine launches today and the library, half a minute. The same command again measures what this commit's rows
lack. `--tiny` checks a few variants under TRITON_INTERPRET=1, without a GPU.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_case import DEVICE, FORWARD, HEADS, Case
from book import Book
from setting import made_by
from torch import Tensor

TOKENS, LENGTHS, RAGGED = 16384, (512, 128, 256, 2048, 8192), (200, 512)
CHECKED = (600, 1, 128, 67, 511, 256)  # lengths of the runs that variants are checked on
ENOUGH = 4e-3  # relative error of float16 arithmetic; a wrong tile is far beyond


def variants() -> Iterator[dict[str, Any]]:
    """All that is tried: {"part", "width", and the named arguments of Case's method}."""
    for width in HEADS:
        yield from plain_variants(width)
        yield from column_variants(width)
        yield {"part": "first", "width": width, "keys": 128, "warps": 4}


def plain_variants(width: int) -> Iterator[dict[str, Any]]:
    tiles = [(64, 64, 4), (128, 64, 4), (128, 64, 8), (64, 128, 4), (128, 128, 8), (128, 128, 4)]
    tiles = tiles if width < 128 else [(64, 64, 4), (128, 64, 8), (128, 128, 8)]
    for queries, keys, warps in tiles:
        one = {"part": "plain", "width": width, "queries": queries, "keys": keys, "warps": warps}
        yield from ({**one, "tma": tma, "stages": stages} for tma in (True, False) for stages in (2, 3))
        if width < 128:
            yield {**one, "tma": True, "stages": 2, "HALF": True}
        if warps == 8:
            yield {**one, "tma": True, "stages": 2, "BLOCKS_FIRST": True}
        if width == 32 and keys == 64:  # where exponentials, not products, take the time
            yield {**one, "tma": True, "stages": 2, "HALF": True, "TENSOR_SUMS": True}


def column_variants(width: int) -> Iterator[dict[str, Any]]:
    shapes = [(64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 8)][: 4 if width < 128 else 1]
    for queries, keys, warps in shapes:
        one = {"part": "columns", "width": width, "queries": queries, "keys": keys, "warps": warps, "every": 1}
        for rows in (False, True):
            ways = ((2, True), (3, False)) if width < 128 else ((2, True),)
            yield from ({**one, "KEYS_AS_ROWS": rows, "stages": stages, "tma": tma} for stages, tma in ways)
        half = {**one, "KEYS_AS_ROWS": True, "stages": 2, "tma": True, "HALF": True}
        yield from ({**half, "TENSOR_SUMS": sums} for sums in (False, True))
        if keys == 64:
            sparse = {**one, "KEYS_AS_ROWS": True, "stages": 2, "tma": False}
            yield from ({**sparse, "every": every} for every in (4, 8, 16))


def work_of(case: Case, variant: dict[str, Any]) -> Callable[[], Any]:
    named = {name: value for name, value in variant.items() if name not in ("part", "width")}
    if variant["part"] == "plain":
        return partial(case.forward, **named)
    return partial(case.columns if variant["part"] == "columns" else case.first, **named)


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def check(case: Case, exact: Any, variant: dict[str, Any]) -> dict[str, Any]:
    """The variant's relative error on runs of many lengths, its registers, and the seconds it took to compile."""
    began, (context, sums, received) = time.perf_counter(), exact
    case.context.fill_(math.nan)
    case.received.fill_(math.nan)
    case.log_sum_exp.fill_(math.nan)
    if variant["part"] != "plain":
        case.log_sum_exp[:, : case.tokens] = sums
    kernel = work_of(case, variant)()
    if variant["part"] == "plain":
        error = max(off(case.context[: case.tokens], context), off(case.log_sum_exp[:, : case.tokens], sums))
    else:
        error = off(case.received[:, : case.tokens], received[variant.get("every", 0)])
    about = {"registers": getattr(kernel, "n_regs", None), "spills": getattr(kernel, "n_spills", None)}
    return {"error_size": error, **about, "seconds": round(time.perf_counter() - began, 2)}


def compile_share(share: list[tuple[int, dict[str, Any]]], results: Any, deadline: float) -> None:
    """In a process of its own: compile and check, until the time is over."""
    cases: dict[int, Any] = {}
    for number, variant in share:
        if time.time() > deadline:
            results.put((number, {"failed": "no time was left to compile it"}))
            continue
        try:
            if variant["part"] == "captured":
                results.put((number, captured(PACKED[variant["variant"]], variant["width"])))
                continue
            if variant["width"] not in cases:
                case = Case(list(CHECKED), variant["width"])
                cases[variant["width"]] = (case, case.exact())
            results.put((number, check(*cases[variant["width"]], variant)))
        except Exception as error:
            results.put((number, {"failed": f"{type(error).__name__}: {str(error)[:300]}"}))


def compile_all(tried: list[dict[str, Any]], *, processes: int, deadline: float) -> dict[int, dict[str, Any]]:
    """What every variant's check gave. A process that hangs is ended: its variants are missing. What may break the
    device for its whole process has processes of its own."""
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), {}
    safe: list[tuple[int, dict[str, Any]]] = []
    risky: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, one in enumerate(tried):
        (risky.setdefault(one["variant"], []) if "variant" in one else safe).append((number, one))
    shares = [safe[i::processes] for i in range(processes)] + list(risky.values())
    workers = [context.Process(target=compile_share, args=(s, results, deadline), daemon=True) for s in shares]
    for worker in workers:
        worker.start()
    while len(found) < len(tried) and time.time() < deadline + 8:
        working = any(worker.is_alive() for worker in workers)  # asked first: what they said last is read below
        try:
            number, result = results.get(timeout=0.5)
        except queue.Empty:
            if not working:
                break
            continue
        found[number] = result
    for worker in workers:
        worker.kill()
    return found


def microseconds(work: Callable[[], Any]) -> float:
    """Of one call, the median over replays of a captured graph of about a millisecond."""
    work()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        work()
        end.record()
        torch.cuda.synchronize()
        calls = max(2, min(20, round(1.0 / max(begin.elapsed_time(end) / 2, 0.01))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                work()
        graph.replay()
        times = []
        for _ in range(7):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * begin.elapsed_time(end) / calls)
    return sorted(times)[len(times) // 2]


def rivals(case: Case, packed: set[str], *, equal: bool) -> dict[str, Callable[[], Any]]:
    """The engine today and the library, by name; `packed` of the library were right in a captured graph."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = case.qkv[: case.tokens].view(case.tokens, 3, case.heads, case.width).unbind(1)
    found: dict[str, Callable[[], Any]] = {
        "engine plain": partial(case.engine, None),
        "engine scored": partial(case.engine, "attention"),
        "engine scored by value": partial(case.engine, "value"),
        **{f"engine scored, one query in {k}": partial(case.engine, "attention", k) for k in (4, 8, 16)},
        "engine scored, the first query": partial(case.engine, "attention", 0),
        **{name: partial(PACKED[name], case) for name in sorted(packed)},
    }
    if equal:
        dense = [part.reshape(-1, case.longest, case.heads, case.width).transpose(1, 2) for part in (query, key, value)]
        inner = [part.contiguous() for part in dense]
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):

            def sdpa(parts: Any, backend: Any = backend) -> Any:
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*parts)

            found[f"sdpa {name}, heads outside"] = partial(sdpa, inner)
            found[f"sdpa {name}"] = partial(sdpa, dense)
    return found


def varlen(case: Case) -> tuple[Tensor, Tensor]:
    """All rows there is room for: only the starts on the device say where runs end."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    query, key, value = case.qkv.view(case.capacity, 3, case.heads, case.width).unbind(1)
    named = (query, key, value, case.starts, case.starts, case.longest, case.longest)
    return varlen_attn(*named, return_aux=AuxRequest(lse=True))


def cudnn_packed(case: Case) -> tuple[Tensor, Tensor]:
    query, key, value = case.qkv.view(case.capacity, 3, case.heads, case.width).unbind(1)
    ends = (None, case.starts, case.starts, case.longest, case.longest)
    found = torch.ops.aten._cudnn_attention_forward(query, key, value, *ends, True, 0.0, False, False)
    return found[0], found[1]


Packed = Callable[[Case], tuple[Tensor, Tensor]]
PACKED: dict[str, Packed] = {"varlen": varlen, "cudnn packed": cudnn_packed}


def captured(call: Packed, width: int) -> dict[str, Any]:
    """Whether the library's packed attention follows starts that change on the device between replays, also to runs
    without tokens, and fewer tokens in all."""
    case, other = Case([512, 300, 77, 400], width, longest=512), Case([3, 512, 0, 441], width, longest=512)
    call(case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context, sums = call(case)
    case.qkv.fill_(math.nan)
    case.qkv[: other.tokens] = other.qkv[: other.tokens]
    case.starts.copy_(other.starts)
    graph.replay()
    exact, lse, _ = other.exact()
    error = off(context[: other.tokens].flatten(1), exact)
    # Flash attention: (heads, rows); cuDNN: (rows, heads, 1). To base e, both.
    by_head = sums if sums.shape[-1] == case.capacity else sums.view(case.capacity, -1).t()
    lse_error = off(by_head[:, : other.tokens] / math.log(2), lse)
    return {"error_size": error, "lse_shape": list(sums.shape), "lse_error": lse_error}


def shapes(width: int) -> Iterator[tuple[str, Case]]:
    """The lengths that matter most come first."""
    drawn = torch.randint(*RAGGED, (TOKENS * 2 // sum(RAGGED),), generator=torch.Generator().manual_seed(1))
    yield "ragged", Case(drawn.tolist(), width, longest=RAGGED[1])
    for length in LENGTHS:
        yield str(length), Case([length] * (TOKENS // length), width)


def measure(right: list[dict[str, Any]], record: Callable[..., None], book: Book) -> None:
    """Rivals first, then what is right, at every length; each width gets its share of the time."""
    began, left = time.time(), book.left
    for width, share in ((32, 0.45), (64, 0.85), (128, 1.0)):
        packed = {one["variant"] for one in right if one["part"] == "captured" and one["width"] == width}
        mine = [one for one in right if one["part"] != "captured" and one["width"] == width]
        for length, case in shapes(width):
            case.log_sum_exp.fill_(10.0)
            for name, call in rivals(case, packed, equal=length != "ragged").items():
                row = {"part": "rival", "variant": name, "width": width, "n": length}
                if book.wants(**row):
                    attempt(record, row, call)
            for one in mine:
                if time.time() > began + share * left:
                    record(part="late", width=width, n=length)
                    break
                if book.wants(**one, n=length):
                    attempt(record, {**one, "n": length}, work_of(case, one))
            torch.cuda.empty_cache()


def attempt(record: Callable[..., None], row: dict[str, Any], work: Callable[[], Any]) -> None:
    try:
        record(**row, microseconds=microseconds(work))
    except Exception as error:
        record(**row, failed=f"{type(error).__name__}: {str(error)[:200]}")
        torch.cuda.synchronize()


def shown(row: dict[str, Any]) -> str:
    """One variant in a word: queries x keys, warps, stages, d for loads by descriptor, and its own flags."""
    if row["part"] == "rival":
        return str(row["variant"])
    flags = "".join(name[0] for name in (*FORWARD, "KEYS_AS_ROWS") if row.get(name))
    tiles = f"{row.get('queries', 1)}x{row['keys']}w{row['warps']}s{row.get('stages', 1)}{'d' * row.get('tma', 0)}"
    return f"{tiles}{'-' * bool(flags)}{flags}"


def table(rows: list[dict[str, Any]]) -> None:
    """Microseconds of the rivals, and the fastest two of each part, at every length."""
    timed = [row for row in rows if "microseconds" in row]
    print("flags: H half exponentials, T sums by products, B blocks first, K keys as rows")
    for width, length in itertools.product(HEADS, ("ragged", *map(str, LENGTHS))):
        here = [row for row in timed if row["width"] == width and row["n"] == length]
        groups = {
            "engine": [row for row in here if "engine" in row.get("variant", "")],
            "library": [row for row in here if row["part"] == "rival" and "engine" not in row["variant"]],
            "plain": [row for row in here if row["part"] == "plain" and not row.get("HALF")],
            "plain half": [row for row in here if row["part"] == "plain" and row.get("HALF")],
        }
        for every in (1, 4, 16):
            columns = [row for row in here if row["part"] == "columns" and row["every"] == every]
            groups[f"columns/{every}"] = [row for row in columns if not row.get("HALF")]
            groups[f"columns/{every} half"] = [row for row in columns if row.get("HALF")]
        groups["first"] = [row for row in here if row["part"] == "first"]
        line = []
        for name, found in groups.items():
            best = sorted(found, key=lambda one: one["microseconds"])[: 2 if "half" not in name else 1]
            if name in ("engine", "library"):
                best = sorted(found, key=lambda one: one["microseconds"])[: 9 if name == "engine" else 3]
            line += [f"{name}: " + ", ".join(f"{shown(row)} {row['microseconds']:.1f}" for row in best)] if best else []
        print(f"heads of {width}, n = {length} | " + " | ".join(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON lines are added to this file")
    parser.add_argument("--seconds", type=float, default=100.0, help="in all; compiling gets about half")
    parser.add_argument("--processes", type=int, default=13)
    parser.add_argument("--engine", action="store_true", help="only what the engine launches today, and the library")
    parser.add_argument("--tiny", action="store_true", help="check a few variants here, measure nothing")
    arguments, began = parser.parse_args(), time.time()
    tried: list[dict[str, Any]] = [] if arguments.engine else list(variants())
    rows: list[dict[str, Any]] = []
    if arguments.tiny:
        for variant in tried[:: len(tried) // 30]:
            case = Case([70, 1, 130], variant["width"])
            print(variant, check(case, case.exact(), variant), flush=True)
        return

    made = made_by("gpu/attention_study.py", device=DEVICE)
    key = sorted({"variant", "n"} | {name for one in variants() for name in one})
    short = {name: made[name] for name in ("commit", "created")}  # of every row; the first has all
    book = Book(Path(arguments.out), short, key=key, seconds=arguments.seconds)
    print(f"{book}; {len(tried)} variants", flush=True)

    def record(**row: Any) -> None:
        rows.append(row)
        book.add(**row)

    record(part="about", tokens=TOKENS, **made)
    tried += [{"part": "captured", "variant": name, "width": width} for name in PACKED for width in HEADS]
    checks = compile_all(tried, processes=arguments.processes, deadline=began + 0.55 * arguments.seconds)
    right = []
    for number, variant in enumerate(tried):
        found = checks.get(number, {"failed": "its process hung"})
        record(**{**variant, "part": f"check {variant['part']}"}, **found)
        if "failed" in found or not found["error_size"] < ENOUGH or variant["part"] == "captured":
            print("checked:", json.dumps({**variant, **found})[:260])
        right += [variant] if found.get("error_size", math.inf) < ENOUGH else []
    print(f"{len(tried)} tried, {len(right)} right, after {time.time() - began:.0f} s", flush=True)
    measure(right, record, book)
    table(rows)
    book.end()


if __name__ == "__main__":
    main()
