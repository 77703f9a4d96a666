"""Eight bits of floating point on a GPU: single products first, then whole engines, each beside half precision.

    PYTHONPATH=src python benchmarks/gpu/fp8.py --out FILE.jsonl [--tiles] [--tiny --device cpu]
    PYTHONPATH=src python benchmarks/gpu/fp8.py --out FILE.jsonl --twin --device cpu

Products of a base-size model at five numbers of rows: ours and the library's, in fp16 and in e4m3, after each was
compared with the same rounded factors multiplied in float64. Then RoBERTa-base's shape with random weights, dense and
pruned as a trained run prunes, engines in turns on lengths like QNLI's and SQuAD's; `int8` scales are calibrated on
other texts. --tiles times every tile that is worth trying: what engine/kernels/plans.py chooses by comes from there.
Processes compile everything at the same time before anything is measured. --twin needs no GPU and times nothing: how
far rounding alone, by the readable twin, moves the same model's answers to the same texts. What fails is a record with
its error; the same command again measures what this commit's records lack, and begins nothing after --seconds.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from book import Book
from long_texts import in_turns, ours
from setting import KEPT, base_model, kernel_ms, lengths_like, made_by, texts_of, wait
from torch import Tensor

from thresher.core.cost import dense_macs, engine_macs, engine_relative_flops, flops
from thresher.core.plan import PruningPlan
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.eight import EightBits
from thresher.engine.backends.reference import Reference
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.cuda.products import EightBit
from thresher.engine.find_scales import find_scales
from thresher.engine.kernels.eight import in_eight
from thresher.engine.kernels.linear import linear
from thresher.engine.kernels.plans import ACTIVATED, EIGHT_TILES, Tile, plan
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import Affine, read_weights

ROWS = (2048, 6656, 13312, 20480, 26624)
MATRICES = {"qkv": (768, 2304), "output": (768, 768), "ffn_in": (768, 3072), "ffn_out": (3072, 768)}
GELU = "ffn_in"  # its product ends in GELU, and in eight bits gives e4m3
TRIED = (
    *EIGHT_TILES,
    Tile(128, 128, 128, 8, 3, 1),
    Tile(64, 128, 128, 4, 3, 2),
    Tile(128, 64, 128, 4, 4, 2),
    Tile(64, 64, 128, 4, 4, 2),
    Tile(64, 64, 128, 4, 6, 2),
)
TRIED_ROWS = (128, 512, 1024, 2048, 13312)
LENGTHS, BATCH, BATCHES = ("qnli", "squad"), 256, 3
CALIBRATED = 48  # texts
Work = Callable[[], Any]


class Product:
    """One product with random numbers, in every arithmetic."""

    def __init__(self, name: str, rows: int, device: str, *, tiny: bool = False) -> None:
        inputs, outputs = (size // 8 if tiny else size for size in MATRICES[name])
        generator = torch.Generator().manual_seed(rows + inputs)
        values = torch.randn(rows, inputs, generator=generator)
        weight, bias = torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs), torch.randn(outputs)
        self.name, self.rows, self.macs = name, rows, rows * inputs * outputs
        self.activation = "gelu" if name == GELU else "none"
        affine = Affine(weight.to(device), bias.to(device))
        self.values, self.weight, self.bias = (each.to(device).half() for each in (values, weight, bias))
        self.eight = EightBit.of(affine, torch.full((inputs,), 0.03, device=device), torch.float16)
        self.values_eight = in_eight(self.values, self.eight.units)
        self.units = torch.full((outputs,), 20.0, device=device) if name == GELU else None
        self.count = torch.tensor([rows], dtype=torch.int32, device=device)

    def ours(self, tile: Tile | None = None) -> Tensor:
        tile = tile or plan(self.rows, self.weight, end=ACTIVATED * (self.name == GELU))[0]
        return linear(self.values, self.weight, self.bias, activation=self.activation, count=self.count, tile=tile)

    def ours_eight(self, tile: Tile | None = None, *, half: bool = False) -> Tensor:
        """half: the result in fp16, also of the product that ends in GELU."""
        eight = self.eight
        tile = tile or plan(self.rows, eight.weight, end=ACTIVATED * (self.name == GELU))[0]
        units = None if half else self.units
        options: Any = {"worth": eight.worth, "units": units, "count": self.count, "tile": tile}
        return linear(self.values_eight, eight.weight, eight.bias, activation=self.activation, **options)

    def library(self) -> Tensor:
        return F.linear(self.values, self.weight, self.bias)

    def library_rowwise(self, *, fast: bool) -> Tensor:
        """With a scale for each row and column, as the library takes them; without GELU, in bf16: it has no fp16."""
        return torch._scaled_mm(
            self.values_eight,
            self.eight.weight.t(),
            scale_a=self.ones,
            scale_b=self.eight.worth[None],
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    def library_one_scale(self) -> Tensor:
        one = self.ones[0]
        return torch._scaled_mm(
            self.values_eight,
            self.eight.weight.t(),
            scale_a=one,
            scale_b=one,
            bias=self.eight.bias,
            out_dtype=torch.float16,
            use_fast_accum=True,
        )

    @property
    def ones(self) -> Tensor:
        if not hasattr(self, "_ones"):
            self._ones = torch.ones(self.rows, 1, device=self.values.device)
        return self._ones

    def truth(self) -> Tensor:
        """The same rounded factors in float64, without bias and activation."""
        return self.values_eight.double() @ (self.eight.weight.double() * self.eight.worth.double()[:, None]).t()

    def ways(self, device: str) -> Iterator[tuple[str, str, Work]]:
        yield "thresher", "fp16", self.ours
        yield "thresher", "fp8", self.ours_eight
        if device != "cpu":
            yield "library, no activation", "fp16", self.library
            yield "library by row, no activation", "fp8", lambda: self.library_rowwise(fast=True)
            yield "library by row, exact, no activation", "fp8", lambda: self.library_rowwise(fast=False)
            yield "library with one scale, no activation", "fp8", self.library_one_scale


class Engines:
    """Dense and pruned, in fp16 and fp8, of one model."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device, sizes = device, {"layers": 3, "width": 128} if tiny else {}
        model = base_model(**sizes)  # type: ignore[arg-type]  # numbers
        self.weights = read_weights(model)
        texts = texts_of(lengths_like("qnli", 4 if tiny else CALIBRATED, seed=7), seed=7)
        self.scales = find_scales(model, [(text, None) for text in texts])
        layers, profile = self.weights.shape.layers, KEPT["thresher"]
        shares = [profile[layer * len(profile) // (layers - 1)] for layer in range(layers - 1)] + [0.0]
        self.dense = PruningPlan.dense(layers)
        fitted = PackedExecutor(Reference(self.weights, PruningPlan((0.0,) * layers, score="value"), device=device))
        found = fitted.fit(shares, fitted.pack(texts))
        thresholds = (
            0.0 if share == 1 else math.inf if share == 0 else at for share, at in zip(shares, found, strict=True)
        )
        self.pruned = PruningPlan(tuple(thresholds), score="value")

    def of(self, dtype: str) -> Iterator[tuple[str, CudaExecutor]]:
        scales = self.scales if dtype == "fp8" else ()
        for name, which in (("thresher-dense", self.dense), ("thresher-pruned", self.pruned)):
            yield name, CudaExecutor(self.weights, which, dtype=dtype, device=self.device, scales=scales)


def batches_like(name: str, *, tiny: bool) -> list[list[list[int]]]:
    batch, count, longest = (2, 1, 24) if tiny else (BATCH, BATCHES, 512)
    texts = texts_of([min(longest, length) for length in lengths_like(name, batch * count)])
    return [texts[start : start + batch] for start in range(0, len(texts), batch)]


def compile_products(name: str, tiles: bool) -> None:
    """In a process of its own: every kernel of one matrix, to where Triton keeps it."""
    for rows in sorted({*ROWS, *(TRIED_ROWS if tiles else ())}):
        case = Product(name, rows, "cuda")
        works = [case.ours, case.ours_eight]
        works += [lambda tile=tile, case=case: case.ours_eight(tile) for tile in TRIED] if tiles else []
        for work in works:
            with_failures(work)
    wait("cuda")


def compile_engine(dtype: str, lengths: str, folder: str) -> None:
    engines: Engines = torch.load(Path(folder) / "engines.pt", weights_only=False)
    with torch.inference_mode():
        for _, engine in engines.of(dtype):
            ours(engine, batches_like(lengths, tiny=False)[:1])


def with_failures(work: Work) -> str:
    """What went wrong: a tile may need more shared memory than there is."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


def measure_products(book: Book, *, device: str, tiny: bool) -> None:
    for name in MATRICES:
        case = Product(name, 16 if tiny else 2048, device, tiny=tiny)
        truth = case.truth()
        for way, work in exactness(case, device):
            about: dict[str, Any] = {"bench": "exactness", "product": name, "engine": way}
            if book.wants(**about):
                with book.attempt(**about):
                    book.add(**about, relative_error=float((work() - truth).norm() / truth.norm()))
    print(f"{'us':>8} " + " ".join(f"{rows:>8}" for rows in ROWS))
    for name in MATRICES:
        found: dict[str, list[float]] = {}
        for rows in (16,) if tiny else ROWS:
            case = Product(name, rows, device, tiny=tiny)
            for way, dtype, work in case.ways(device):
                about = {"bench": "product", "product": name, "rows": rows, "engine": way, "dtype": dtype}
                if not book.wants(**about):
                    continue
                with book.attempt(**about):
                    ms = kernel_ms(work, device)
                    book.add(**about, ms=ms, tflops=2 * case.macs / ms / 1e9)
                    found.setdefault(f"{dtype} {way}", []).append(1000 * ms)
        for way, times in found.items():
            print(f"{name:>8} " + " ".join(f"{each:8.1f}" for each in times), way, flush=True)


def exactness(case: Product, device: str) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Ways to multiply the same rounded factors, in the order of their exactness; all give float64."""
    eight, tile = case.eight, plan(case.rows, case.eight.weight)[0]
    options: Any = {"worth": eight.worth, "count": case.count}
    no_bias = torch.zeros_like(eight.bias)
    yield "thresher", lambda: linear(case.values_eight, eight.weight, no_bias, tile=tile, **options).double()
    if device != "cpu":
        yield "library by row, exact, bf16", lambda: case.library_rowwise(fast=False).double()
        yield "library by row, bf16", lambda: case.library_rowwise(fast=True).double()


def measure_tiles(book: Book, *, device: str) -> None:
    for name in MATRICES:
        for tile in TRIED:
            times = []
            for rows in TRIED_ROWS:
                about = {"bench": "tile", "product": name, "rows": rows, "tile": list(tile[:6])}
                if not book.wants(**about):
                    continue
                case = Product(name, rows, device)
                if with_failures(lambda case=case, tile=tile: case.ours_eight(tile)):
                    break
                times.append(kernel_ms(lambda case=case, tile=tile: case.ours_eight(tile), device))
                book.add(**about, ms=times[-1])
            shown = " ".join(f"{1000 * each:7.1f}" for each in times)
            print(f"{name:>8} {tile[:6]!s:>26} {shown}", flush=True)


def measure_engines(book: Book, engines: Engines, *, tiny: bool, rounds: int) -> None:
    for name in LENGTHS[:1] if tiny else LENGTHS:
        about: dict[str, Any] = {"bench": "engines", "lengths": name}
        if book.wants(**about, engine="thresher-pruned", dtype="fp8"):  # the last of them
            with book.attempt(**about):
                measure_lengths(book, engines, name, tiny=tiny, rounds=rounds)


def measure_lengths(book: Book, engines: Engines, lengths_name: str, *, tiny: bool, rounds: int) -> None:
    shape = engines.weights.shape
    batches = batches_like(lengths_name, tiny=tiny)
    lengths = torch.tensor([len(text) for batch in batches for text in batch])
    works, kept, outputs, made = {}, {}, {}, {}
    for dtype in ("fp16", "fp8"):
        for name, engine in engines.of(dtype):
            key = f"{name} {dtype}"
            works[key], kept[key] = ours(engine, batches)
            outputs[key], made[key] = torch.cat([each.outputs for each in works[key]()]), engine
    seconds = in_turns(works, engines.device, rounds=rounds)
    for key, times in seconds.items():
        name, dtype = key.split()
        other = f"{name} fp16"
        middle, alone = sorted(times)[len(times) // 2], made[key].plan.alone
        pruned = name == "thresher-pruned"
        macs = engine_macs(shape, lengths, kept[key], alone=alone) if pruned else dense_macs(shape, lengths)
        row = {
            "lengths": lengths_name,
            "engine": name,
            "dtype": dtype,
            "sequences_per_s": len(lengths) / middle,
            "sequences_per_s_low": len(lengths) / max(times),
            "sequences_per_s_high": len(lengths) / min(times),
            "useful_tflops": float(flops(macs).sum()) / middle / 1e12,
            "engine_relative_flops": engine_relative_flops(shape, lengths, kept[key], alone=alone) if pruned else 1.0,
            "same_kept_counts": float((kept[key] == kept[other]).all(dim=1).double().mean()),
            "logits_apart": float((outputs[key] - outputs[other]).abs().max()),
            "logits_spread": float(outputs[other].std()),
            "batch": len(batches[0]),
            "batches": len(batches),
            "rounds": rounds,
        }
        book.add(bench="engines", **row)
        print(
            f"{lengths_name:>6} {key:<22} {row['sequences_per_s']:9.0f}/s {row['useful_tflops']:6.0f} TFLOP/s "
            f"{sorted(seconds[other])[len(times) // 2] / middle:5.2f}x of fp16, kept alike "
            f"{row['same_kept_counts']:.3f}, logits apart {row['logits_apart']:.3f} of {row['logits_spread']:.3f}",
            flush=True,
        )


def measure_twin(book: Book, engines: Engines, *, tiny: bool) -> None:
    """fp8 beside fp32, both in plain torch on the CPU."""
    batches = batches_like("qnli", tiny=tiny)
    parts = [batch[start : start + 32] for batch in batches for start in range(0, len(batch), 32)]
    for name, which in (("dense", engines.dense), ("pruned", engines.pruned)):
        backends = (Cpu(engines.weights, which), EightBits(engines.weights, which, scales=engines.scales))
        found = [[PackedExecutor(backend).compute(part) for part in parts] for backend in backends]
        (exact, exact_kept), (eight, kept) = (
            (torch.cat([each.outputs for each in one]), torch.cat([each.kept for each in one])) for one in found
        )
        row = {
            "logits_apart": float((eight - exact).abs().max()),
            "logits_apart_rms": float((eight - exact).square().mean().sqrt()),
            "logits_spread": float(exact.std()),
            "same_kept_counts": float((kept == exact_kept).all(dim=1).double().mean()),
        }
        book.add(bench="twin", lengths="qnli", engine=f"{name}, on the CPU", dtype="fp8", **row)
        print(name, " ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)


def compile_all(folder: Path, *, tiles: bool, seconds: float) -> None:
    pool = ProcessPoolExecutor(8, mp_context=get_context("spawn"))
    ends = time.monotonic() + seconds
    try:
        waiting = [pool.submit(compile_products, name, tiles) for name in MATRICES]
        waiting += [
            pool.submit(compile_engine, dtype, lengths, str(folder)) for dtype in ("fp16", "fp8") for lengths in LENGTHS
        ]
        for each in waiting:
            try:
                each.result(timeout=max(0.0, ends - time.monotonic()))
            except Exception as error:  # what is measured compiles it again, and says what is wrong
                print(f"a process that compiles failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()  # one that hangs would be waited for
        pool.shutdown(cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added to this file")
    parser.add_argument("--tiles", action="store_true", help="also time every tile that is worth trying")
    parser.add_argument("--twin", action="store_true", help="only how far rounding moves answers, on the CPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=300, help="in all; half of it for compiling")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a try in the interpreter")
    options, began = parser.parse_args(), time.time()
    about = made_by("gpu/fp8.py", device=options.device)
    key = ("bench", "product", "rows", "engine", "dtype", "tile", "lengths")
    book = Book(options.out, about, key=key, seconds=options.seconds)
    print(book, flush=True)
    engines = Engines(options.device, tiny=options.tiny)
    if options.twin:
        return measure_twin(book, engines, tiny=options.tiny)
    print(f"scales and thresholds after {time.time() - began:.0f} s", flush=True)
    if options.device != "cpu":
        torch.save(engines, options.out.with_name("engines.pt"))
        compile_all(options.out.parent, tiles=options.tiles, seconds=options.seconds / 2 - book.spent)
        options.out.with_name("engines.pt").unlink()
        print(f"compiled after {time.time() - began:.0f} s", flush=True)
    with torch.inference_mode():
        measure_products(book, device=options.device, tiny=options.tiny)
        if options.tiles:
            measure_tiles(book, device=options.device)
        print(f"products after {time.time() - began:.0f} s", flush=True)
        measure_engines(book, engines, tiny=options.tiny, rounds=options.rounds)
    book.end()


if __name__ == "__main__":
    main()
