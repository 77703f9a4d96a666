"""Attention in many forms against what the library offers, packed runs, on a CUDA device.

    python benchmarks/gpu/attention_study.py --out FILE [--seconds 95] [--processes 12]

Processes compile and check shares of the variants at the same time (Triton keeps what it compiled on disk); then this
one measures those that are right. A variant that fails is a record with its error. `--tiny` checks a few variants under
TRITON_INTERPRET=1, without a GPU.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_variants import choose, columns, forward, from_first
from setting import made_by
from torch import Tensor

from thresher.engine.kernels.attention import attention
from thresher.engine.kernels.toolchain import RUNS_INTERPRETED, blocks, descriptor, launching

TOKENS, LENGTHS, RAGGED = 16384, (128, 256, 512, 2048, 8192), (200, 512)
HEADS = {32: 12, 64: 12, 128: 6}
CHECKED = (600, 1, 128, 67, 511, 256)  # lengths of the runs that variants are checked on
ENOUGH = 4e-3  # relative error of float16 arithmetic; a wrong tile is far beyond
DTYPE, DEVICE = torch.float16, "cpu" if RUNS_INTERPRETED else "cuda"
FORWARD = {"HALF": False, "TENSOR_SUMS": False, "SPECIAL": False, "BLOCKS_FIRST": False}
COLUMNS = {"HALF": False, "KEYS_AS_ROWS": False, "BLOCKS_FIRST": False}


class Case:
    """One packed batch: runs of given lengths, rows behind the last that hold no number."""

    def __init__(self, lengths: list[int], width: int, *, longest: int | None = None, seed: int = 0) -> None:
        self.lengths, self.width, self.heads = lengths, width, HEADS[width]
        self.tokens, self.longest = sum(lengths), longest or max(lengths)
        torch.manual_seed(seed)
        self.qkv = torch.randn(self.tokens + 77, 3 * self.heads * width, device=DEVICE).to(DTYPE)
        self.qkv[self.tokens :] = math.nan
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        self.starts = starts.to(DEVICE)
        self.positions = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]).to(DEVICE)
        self.capacity, self.pairs = len(self.qkv), len(lengths) * self.heads
        self.scale = math.log2(math.e) / math.sqrt(width)
        self.context = torch.full_like(self.qkv[:, : self.heads * width], math.nan)
        self.log_sum_exp = torch.full((self.heads, self.capacity), math.nan, device=DEVICE)
        self.received = torch.full((self.heads, self.capacity), math.nan, device=DEVICE)
        self.chosen = torch.zeros(self.capacity, dtype=torch.int32, device=DEVICE)
        self.counts = torch.zeros(len(lengths), dtype=torch.int32, device=DEVICE)

    def shared(self, *, tiles: Any = None) -> dict[str, Any]:
        return {
            "qkv": self.qkv,
            "cu_seqlens": self.starts,
            "capacity": self.capacity,
            "scale": self.scale,
            "HEADS": self.heads,
            "WIDTH": self.width,
        } | ({} if tiles is False else {"tiles": tiles})

    def engine(self, score: str | None) -> Any:
        return attention(
            self.qkv, self.starts, heads=self.heads, max_length=self.longest, score=score, mostly_long=True
        )

    def forward(self, *, queries: int, keys: int, warps: int, stages: int, tma: bool, **extra: Any) -> Any:
        named = {**FORWARD, **extra}
        grid = (self.pairs, blocks(self.longest, queries))
        return forward[grid[::-1] if named["BLOCKS_FIRST"] else grid](
            context=self.context,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=descriptor(self.qkv, (keys, self.width)) if tma else None),
            QUERIES=queries,
            KEYS=keys,
            STAGES=stages,
            **named,
            **launching(self.qkv, num_warps=warps, num_stages=stages),
        )

    def columns(self, *, every: int, queries: int, keys: int, warps: int, stages: int, tma: bool, **extra: Any) -> Any:
        named = {**COLUMNS, **extra}
        if every > 1:
            choose[(len(self.lengths),)](
                self.chosen, self.counts, self.starts, self.positions, every, 512, **launching(self.qkv)
            )
        grid = (self.pairs, blocks(self.longest, keys))
        return columns[grid[::-1] if named["BLOCKS_FIRST"] else grid](
            received=self.received,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=descriptor(self.qkv, (queries, self.width)) if tma else None),
            chosen=self.chosen if every > 1 else None,
            counts=self.counts if every > 1 else None,
            QUERIES=queries,
            KEYS=keys,
            STAGES=stages,
            **named,
            **launching(self.qkv, num_warps=warps, num_stages=stages),
        )

    def first(self, *, keys: int, warps: int) -> Any:
        return from_first[(len(self.lengths), blocks(self.longest, keys))](
            received=self.received,
            log_sum_exp=self.log_sum_exp,
            **self.shared(tiles=False),
            KEYS=keys,
            **launching(self.qkv, num_warps=warps),
        )

    def exact(self) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Context, log-sum-exp to base 2, and what keys receive from every n-th query (0: the first), in float32."""
        contexts, sums, received = [], [], {every: [] for every in (0, 1, 4, 8, 16)}
        for start, length in zip(self.starts.tolist(), self.lengths, strict=False):
            parts = self.qkv[start : start + length].float().view(length, 3, self.heads, self.width)
            query, key, value = parts.permute(1, 2, 0, 3)
            logits = query @ key.transpose(1, 2) * self.scale
            sums.append(torch.logsumexp(logits * math.log(2), -1) / math.log(2))
            weights = torch.exp2(logits - sums[-1][..., None])
            contexts.append((weights @ value).transpose(0, 1).flatten(1))
            for every, found in received.items():
                found.append(weights[:, :1].sum(1) if every == 0 else weights[:, ::every].sum(1))
        return torch.cat(contexts), torch.cat(sums, 1), {k: torch.cat(v, 1) for k, v in received.items()}


def variants() -> Iterator[dict[str, Any]]:
    """All that is tried: {"part", "width", and the named arguments of Case's method}."""
    for width in HEADS:
        tiles = [(64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 4), (128, 128, 8), (64, 128, 4), (256, 64, 8)]
        tiles = tiles if width < 128 else [(64, 64, 4), (128, 64, 8), (128, 128, 8)]
        for (queries, keys, warps), tma in itertools.product(tiles, (False, True)):
            one = {"part": "plain", "width": width, "queries": queries, "keys": keys, "warps": warps, "tma": tma}
            yield from ({**one, "stages": stages} for stages in (2, 3))
            yield {**one, "stages": 2, "HALF": True}
            if keys == 128:
                yield {**one, "stages": 2, "BLOCKS_FIRST": True}
            if width < 128 and not tma:
                yield {**one, "stages": 2, "HALF": True, "TENSOR_SUMS": True}
            if tma and warps == 4:
                yield {**one, "stages": 2, "SPECIAL": True}
        shapes = [(64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 4), (128, 128, 8)][: 5 if width < 128 else 2]
        for (queries, keys, warps), rows in itertools.product(shapes, (False, True)):
            one = {"part": "columns", "width": width, "queries": queries, "keys": keys, "warps": warps}
            one |= {"KEYS_AS_ROWS": rows, "every": 1}
            yield from ({**one, "stages": stages, "tma": tma} for stages, tma in ((2, True), (3, False)))
            yield {**one, "stages": 2, "tma": True, "HALF": True}
            if rows:
                yield from ({**one, "stages": 2, "tma": False, "every": every} for every in (4, 8, 16))
        yield from ({"part": "first", "width": width, "keys": keys, "warps": 4} for keys in (64, 128))


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
            if variant["width"] not in cases:
                case = Case(list(CHECKED), variant["width"])
                cases[variant["width"]] = (case, case.exact())
            results.put((number, check(*cases[variant["width"]], variant)))
        except Exception as error:
            results.put((number, {"failed": f"{type(error).__name__}: {str(error)[:300]}"}))


def compile_all(tried: list[dict[str, Any]], *, processes: int, deadline: float) -> dict[int, dict[str, Any]]:
    """What every variant's check gave. A process that hangs is ended: its variants are missing."""
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), {}
    numbered = list(enumerate(tried))
    risky = [one for one in numbered if one[1].get("SPECIAL")]
    safe = [one for one in numbered if not one[1].get("SPECIAL")]
    shares = [safe[i :: processes - 2] for i in range(processes - 2)] + [risky[::2], risky[1::2]]
    workers = [context.Process(target=compile_share, args=(s, results, deadline), daemon=True) for s in shares]
    for worker in workers:
        worker.start()
    while len(found) < len(tried) and time.time() < deadline + 8 and any(w.is_alive() for w in workers):
        try:
            number, result = results.get(timeout=0.5)
        except Exception:  # an empty queue: look at the clock again
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


def rivals(case: Case, *, equal: bool) -> dict[str, Callable[[], Any]]:
    """The engine today and the library, by name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = case.qkv[: case.tokens].view(case.tokens, 3, case.heads, case.width).unbind(1)
    found: dict[str, Callable[[], Any]] = {
        "engine plain": partial(case.engine, None),
        "engine scored": partial(case.engine, "attention"),
        "engine scored by value": partial(case.engine, "value"),
        "cudnn packed": partial(cudnn_packed, case),
        "varlen": partial(varlen, case),
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
    for module in ("flash_attn", "flash_attn_interface"):
        found[module] = partial(flash, module, query, key, value, case)
    return found


def flash(module: str, query: Any, key: Any, value: Any, case: Case) -> Any:
    import importlib

    call = importlib.import_module(module).flash_attn_varlen_func
    return call(query, key, value, case.starts, case.starts, case.longest, case.longest)


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


def captured(call: Callable[[Case], tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Whether the library's packed attention follows starts that change on the device between replays."""
    case, other = Case([512, 300, 77, 400], 64, longest=512), Case([3, 512, 500, 141], 64, longest=512)
    call(case)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context, sums = call(case)
    case.qkv.copy_(other.qkv[: case.capacity])
    case.starts.copy_(other.starts)
    graph.replay()
    exact, lse, _ = other.exact()
    error = off(context[: other.tokens].flatten(1), exact)
    flat = sums[:, : other.tokens] if sums.shape[-1] == case.capacity else sums.flatten()[: lse.numel()].view_as(lse)
    return {"error_size": error, "lse_shape": list(sums.shape), "lse_error": off(flat / math.log(2), lse)}


def shapes(width: int) -> Iterator[tuple[str, Case]]:
    for length in LENGTHS:
        yield str(length), Case([length] * (TOKENS // length), width)
    drawn = torch.randint(*RAGGED, (TOKENS * 2 // sum(RAGGED),), generator=torch.Generator().manual_seed(1))
    yield "ragged", Case(drawn.tolist(), width, longest=RAGGED[1])


def measure(tried: list[dict[str, Any]], checks: dict[int, Any], record: Callable[..., None], end: float) -> None:
    """Rivals first, then what is right, at every length; the widths that matter most come first."""
    right = [one for i, one in enumerate(tried) if checks.get(i, {}).get("error_size", math.inf) < ENOUGH]
    for width in (32, 64, 128):
        for length, case in shapes(width):
            case.log_sum_exp.fill_(10.0)
            for name, call in rivals(case, equal=length != "ragged").items():
                attempt(record, {"part": "rival", "variant": name, "width": width, "n": length}, call)
            mine = [one for one in right if one["width"] == width]
            for one in mine:
                if time.time() > end:
                    record(part="late", width=width, n=length)
                    break
                attempt(record, {**one, "n": length}, work_of(case, one))
            torch.cuda.empty_cache()


def attempt(record: Callable[..., None], row: dict[str, Any], work: Callable[[], Any]) -> None:
    try:
        record(**row, microseconds=microseconds(work))
    except Exception as error:
        record(**row, failed=f"{type(error).__name__}: {str(error)[:200]}")
        torch.cuda.synchronize()


def table(rows: list[dict[str, Any]]) -> None:
    """The rivals, and the three fastest of each part, at every length."""
    timed = [row for row in rows if "microseconds" in row]
    for width, length in itertools.product(HEADS, (*map(str, LENGTHS), "ragged")):
        here = [row for row in timed if row["width"] == width and row["n"] == length]
        line = {row["variant"]: round(row["microseconds"], 1) for row in here if row["part"] == "rival"}
        print(f"\nheads of {width}, n = {length}: {line}")
        for part, every in (("plain", None), ("columns", 1), ("columns", 4), ("columns", 16), ("first", None)):
            found = [row for row in here if row["part"] == part and row.get("every") == every]
            for row in sorted(found, key=lambda one: one["microseconds"])[:3]:
                print("  ", {k: v for k, v in row.items() if k not in ("width", "n", "seconds") and v is not False})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON lines are added to this file")
    parser.add_argument("--seconds", type=float, default=95.0, help="in all; compiling gets half of them")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--tiny", action="store_true", help="check a few variants here, measure nothing")
    arguments, began = parser.parse_args(), time.time()
    tried, rows, out = list(variants()), [], Path(arguments.out)
    if arguments.tiny:
        for variant in tried[:: len(tried) // 40]:
            case = Case([70, 1, 130], variant["width"])
            print(variant, check(case, case.exact(), variant), flush=True)
        return

    def record(**row: Any) -> None:
        rows.append(row)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    record(part="about", tokens=TOKENS, **made_by("gpu/attention_study.py", device=DEVICE))
    checks = compile_all(tried, processes=arguments.processes, deadline=began + arguments.seconds / 2)
    for number, variant in enumerate(tried):
        record(**{**variant, "part": f"check {variant['part']}"}, **checks.get(number, {"failed": "its process hung"}))
    print(f"{len(tried)} variants, {len(checks)} checked, after {time.time() - began:.0f} s", flush=True)
    for name, call in (("varlen", varlen), ("cudnn packed", cudnn_packed)):
        try:
            record(part="captured", variant=name, **captured(call))
        except Exception as error:
            record(part="captured", variant=name, failed=f"{type(error).__name__}: {str(error)[:300]}")
        print(rows[-1])
    measure(tried, checks, record, began + arguments.seconds)
    table(rows)


if __name__ == "__main__":
    main()
