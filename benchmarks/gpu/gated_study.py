"""Gates and turns in the end of the product that makes them, against passes of their own, on a CUDA device.

    PYTHONPATH=src python benchmarks/gpu/gated_study.py --out FILE [--seconds 55] [--engines]

Shapes are those of ModernBERT-base, and of NomicBERT's gate. First every way is checked against exact values, with
fewer rows live than there is room for; then those that are right are timed in captured CUDA graphs: the product by the
library or by our kernel with the pass that follows, and our kernel with the end in several tiles. `--engines` times
dense engines of 32,768 tokens instead, with each of the two ends and without, beside RoBERTa-base. The same command
again measures what this commit's rows lack. `--tiny` is for Triton's interpreter, without a GPU.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from attention_study import microseconds
from book import Book, Row
from setting import kernel_ms, made_by
from torch import Tensor

from thresher.core.cost import engine_macs
from thresher.core.places import turns as tables_of
from thresher.core.plan import PruningPlan
from thresher.engine.cuda import products
from thresher.engine.cuda.executor import CudaExecutor
from thresher.engine.cuda.products import Count, gated_product, turned_product
from thresher.engine.kernels.gate import gated
from thresher.engine.kernels.linear import linear, linear_reference
from thresher.engine.kernels.plans import GATED, TILES, TURNED, Tile, estimate, plan
from thresher.engine.kernels.rotary import Turns, rotate_, rotate_reference
from thresher.engine.weights import Affine, read_weights
from thresher.tokenizing.tokens import Tokens

WIDTH, HEAD, LENGTH, BASE = 768, 64, 512, 160_000.0
ROWS = (32768, 2048, 16384, 8192)
CHECKED = (1000, 907)  # rows there is room for, and live ones
ENOUGH = 2e-3  # relative error of half precision; a wrong tile is far beyond
# Beside the engine's tiles: two programs to a processor, so that one's end runs beside the other's sums; more stages.
TRIED = (
    *(tile for tile in TILES if tile.columns >= HEAD),
    Tile(128, 128, 64, 4, 3, 2),
    Tile(128, 256, 64, 8, 4, 1),
    Tile(256, 128, 64, 8, 3, 1),
    Tile(64, 256, 64, 4, 3, 1),
    Tile(64, 128, 64, 4, 4, 2),
)
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
ENDS = {"passes": frozenset(), "gate": {"gate"}, "turns": {"turns"}, "both": {"gate", "turns"}}
Ways = Iterator[tuple[str, Tile | None, Callable[[], Tensor]]]


class Case:
    """A product with random numbers, and what may follow it. rows: there is room for; live: of them, on the device."""

    def __init__(self, part: str, rows: int, live: int, device: str, *, tiny: bool) -> None:
        torch.manual_seed(rows)
        self.part, self.rows, self.live, inputs = part, rows, live, WIDTH // (8 if tiny else 1)
        self.tried = TRIED[:1] if tiny else TRIED
        self.activation, outputs = {"gate": ("gelu", 2304), "silu": ("silu", 6144), "turns": ("none", 2304)}[part]
        outputs = outputs // 12 if tiny else outputs
        self.values = torch.randn(rows, inputs, device=device).half()
        self.affine = Affine(
            (torch.randn(outputs, inputs, device=device) / inputs**0.5).half(),
            torch.randn(outputs, device=device).half(),
        )
        self.on_device = torch.tensor([live], dtype=torch.int32, device=device)
        self.count = Count(self.on_device, live)
        places = torch.arange(rows, dtype=torch.int32, device=device) % LENGTH
        cosines, sines = (
            t[:, : HEAD // 2].contiguous() for t in tables_of(torch.arange(LENGTH), base=BASE, width=HEAD)
        )
        self.turns = Turns(places, cosines.to(device), sines.to(device), outputs // 3 * 2)
        self.end, self.multiple = (TURNED, HEAD) if part == "turns" else (GATED, 1)

    @property
    def affine_parts(self) -> tuple[Tensor, Tensor]:
        return self.affine.weight, self.affine.bias

    def library(self) -> Tensor:
        return F.linear(self.values, *self.affine_parts)

    def kernel(self) -> Tensor:
        tile, _ = plan(self.live, self.affine.weight)
        return linear(self.values, *self.affine_parts, count=self.on_device, tile=tile)

    def passed(self, made: Tensor) -> Tensor:
        """The end as a pass of its own."""
        if self.part == "turns":
            rotate_(made, self.turns, count=self.on_device)
            return made
        return gated(made, activation=self.activation, count=self.on_device)

    def fused(self, tile: Tile | None = None) -> Tensor:
        tile = tile or plan(self.live, self.affine.weight, end=self.end, multiple=self.multiple)[0]
        named: Row = {"count": self.on_device, "tile": tile}
        named |= {"turns": self.turns} if self.part == "turns" else {"gated": True, "activation": self.activation}
        return linear(self.values, *self.affine_parts, **named)

    def engine(self) -> Tensor:
        """What the engine's arithmetic takes."""
        if self.part == "turns":
            return turned_product(self.values, self.affine, self.turns, self.count)
        return gated_product(self.values, self.affine, self.count, activation=self.activation)

    def exact(self) -> Tensor:
        given = [each.double() for each in (self.values[: self.live], *self.affine_parts)]
        if self.part == "turns":
            turns = self.turns._replace(positions=self.turns.positions[: self.live])
            return rotate_reference(linear_reference(*given), turns)
        return linear_reference(*given, gated=True, activation=self.activation)

    def ways(self) -> Ways:
        made = self.library()
        yield "library and pass", None, lambda: self.passed(self.library())
        yield "engine", None, self.engine
        yield "fused", None, self.fused
        yield "kernel and pass", None, lambda: self.passed(self.kernel())
        yield "library alone", None, self.library
        yield "kernel alone", None, self.kernel
        yield "pass alone", None, lambda: self.passed(made)
        if self.part != "silu":
            yield from (("fused", tile, partial(self.fused, tile)) for tile in self.tried)


def check(case: Case, exact: Tensor, way: str, work: Callable[[], Tensor]) -> float:
    """The relative error of the live rows; of what is no whole way, none is asked."""
    found = work()[: case.live].double()
    return 0.0 if "alone" in way else float((found - exact).norm() / exact.norm())


def study(book: Book, options: argparse.Namespace) -> None:
    wrong: set[tuple[str, str]] = set()

    def named(part: str, way: str, tile: Tile | None) -> Row:
        return {"part": part, "way": way, "tile": None if tile is None else list(tile[:6])}

    for part in ("gate", "turns", "silu"):
        rows, live = (77, 45) if options.tiny else CHECKED
        case = Case(part, rows, live, options.device, tiny=options.tiny)
        exact = case.exact()
        for way, tile, work in case.ways():
            row = {**named(part, way, tile), "rows": "checked"}
            with book.attempt(**row):
                error = check(case, exact, way, work)
                book.add(**row, error_size=error)
                if error < ENOUGH:
                    continue
                print("WRONG:", json.dumps({**row, "error_size": error}))
            wrong.add((part, f"{way} {tile}"))
    for rows, part in itertools.product((70,) if options.tiny else ROWS, ("gate", "turns", "silu")):
        case = Case(part, rows, rows, options.device, tiny=options.tiny)
        line = []
        for way, tile, work in case.ways():
            row = {**named(part, way, tile), "rows": rows}
            if (part, f"{way} {tile}") in wrong or not book.wants(**row):
                continue
            with book.attempt(**row):
                took = 1000 * kernel_ms(work, "cpu") if options.device == "cpu" else microseconds(work)
                guess = estimate(rows, case.affine.weight, end=case.end, multiple=case.multiple).microseconds
                book.add(**row, microseconds=took, **({"estimated": guess} if way == "fused" and tile is None else {}))
                line.append(f"{way}{'' if tile is None else ' ' + 'x'.join(map(str, tile[:6]))} {took:.1f}")
        print(f"{part}, {rows} rows, us: " + ", ".join(line), flush=True)


def engines(book: Book, options: argparse.Namespace) -> None:
    """Dense, in turns, so that all have the same clocks; TFLOP/s by the engine's own count."""
    import families  # of the folder above, which `setting` knows

    if options.tiny:  # the same families in sizes that the interpreter can compute
        families.SHAPES.update(
            roberta=("roberta", {**TINY, "max_position_embeddings": 600}), modernbert=("modernbert", TINY)
        )
    all_weights = {shape: read_weights(families.model_of(shape)) for shape in ("modernbert", "roberta")}
    for lengths, (mean, *_) in families.LENGTHS.items():
        texts = families.texts_of(lengths, 1 if options.tiny else families.TOKENS["cuda"] // mean)
        tokens, counts = Tokens.of(texts, None), torch.tensor([len(text) for text in texts])
        made: dict[tuple[str, str], tuple[Callable[[], object], float]] = {}
        for shape, weights in all_weights.items():
            layers = weights.shape.layers
            macs = float(engine_macs(weights.shape, counts, counts[:, None].repeat(1, layers)).sum())
            for name in ENDS if shape == "modernbert" else ("passes",):
                executor = CudaExecutor(weights, PruningPlan.dense(layers), dtype="fp16", device=options.device)
                made[shape, name] = (partial(executor.run, executor.pack(tokens)), macs)
        times: dict[tuple[str, str], list[float]] = {key: [] for key in made}
        for _ in range(3 if options.tiny else 23):
            for key, (run, _) in made.items():
                products.IN_ITS_END = frozenset(ENDS[key[1]])
                began = time.perf_counter()
                run()
                times[key].append(time.perf_counter() - began)
        for (shape, name), (_, macs) in made.items():
            seconds = median(times[shape, name][2:])  # the first compute graphs
            row = {"part": "engine", "way": name, "rows": lengths, "shape": shape, "tokens": tokens.total}
            book.add(**row, ms=1000 * seconds, teraflops_per_second=2e-12 * macs / seconds)
            print(
                f"{shape}, {lengths}, {name}: {1000 * seconds:.2f} ms, {2e-12 * macs / seconds:.0f} TFLOP/s", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added to this file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=55.0, help="in all; nothing is begun after them")
    parser.add_argument("--engines", action="store_true", help="dense engines with and without, and RoBERTa")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for the interpreter")
    options = parser.parse_args()
    key = ("part", "way", "rows", "tile", "shape")
    book = Book(options.out, made_by("gpu/gated_study.py", device=options.device), key=key, seconds=options.seconds)
    print(book, flush=True)
    (engines if options.engines else study)(book, options)
    book.end()


if __name__ == "__main__":
    main()
