"""Compiles every kernel to machine code for two GPU generations; needs Triton, but no GPU. Run as a script.

The interpreter accepts what the compiler does not: types that change in a loop, a return in a branch, tiles too big.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thresher.engine import kernels
from thresher.engine.kernels import (
    attention,
    behind,
    counted,
    distances,
    eight,
    embeddings,
    first,
    gate,
    linear,
    long_runs,
    norm,
    plans,
    prune,
    rotary,
    toolchain,
)
from thresher.engine.kernels.tiles import DISTANT, PLAIN, RUNGS, Tiles, fitting

TYPES = {
    "*i32": "cu_seqlens positions index counts rows count new_cu_seqlens new_positions "
    "input_ids position_rows token_types chosen up_to starts",
    "*u8": "keep protected new_protected",
    "*fp32": "received log_sum_exp worth units means cosines sines",
    "i32": "capacity bucket bias_row bias_head sequences",
    "fp32": "scale epsilon threshold",
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names.split()}
HEADS = {"HEADS": 12, "WIDTH": 64, "TILE_WIDTH": 64}
LONG = {"tiles": None, "IN_TURNS": False, "LONGER_THAN": 128, "WIDEST": None, "QUERIES": 128, "KEYS": 64}
ROW = {"WIDTH": 768, "TILE_WIDTH": 1024, "ROWS": 1}
UNTURNED = {"positions": None, "cosines": None, "sines": None, "TURNED": 0, "HALF": 0}
TILE = {"ROWS": 64, "COLUMNS": 128, "DEPTH": 64, "GROUP": 8, "GATED": False, **UNTURNED}
PRODUCT = {"INPUTS": 768, "PARTS": 1, "AHEAD": False}
GATED = {**TILE, **PRODUCT, "OUTPUTS": 1152, "ACTIVATION": "gelu", "GATED": True, "rows": None}
TURNED = {**PRODUCT, "ACTIVATION": "none", "GATED": False, "GROUP": 8, "HALF": 32}
TURNED |= {"ROWS": 64, "COLUMNS": 128, "DEPTH": 64, "OUTPUTS": 2304, "TURNED": 1536, "rows": None}
NO_DISTANCES = {"of_queries": None, "of_keys": None, "index": None, "DISTANCES": None}
BIASED = {**NO_DISTANCES, "WINDOW": None}
UNPLACED = {**BIASED, "bias": None}
UNBIASED = {**UNPLACED, "positions": None}
WINDOWS = {**NO_DISTANCES, "bias": None, "WINDOW": 64}
DISTANCES = {"bias": None, "DISTANCES": 512, "WINDOW": None}
GATHERED = {**LONG, "QUERIES": 64}
BY_VALUE = {"BY_VALUE": True}  # does all that attention scores need, and more
ALL = {"EVERY": 1}  # queries count
COLUMNS = {**BY_VALUE, "KEYS_AS_ROWS": False}
BEHIND = {"WIDTH": 768, "ROWS": 16, "COLUMNS": 128}
ALL_LONG = {"chosen": None, "up_to": None}

KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (attention._whole_runs, {**HEADS, **UNBIASED, "LONGER_THAN": 0, "WIDEST": 128, "QUERIES": 64, **BY_VALUE, **ALL}),
    (
        attention._whole_runs,
        {**HEADS, **BIASED, **ALL, "received": None, "LONGER_THAN": 0, "WIDEST": 64, "QUERIES": 64, "BY_VALUE": False},
    ),
    *(
        (
            attention._whole_runs,
            {**HEADS, **UNPLACED, "EVERY": every, "LONGER_THAN": 128, "WIDEST": 256, "QUERIES": 64, **BY_VALUE},
        )
        for every in (0, 8)
    ),
    (long_runs.long_runs, {**HEADS, **BIASED, **LONG}),
    (long_runs.long_runs, {**HEADS, **BIASED, **LONG, "IN_TURNS": True}),
    (long_runs.received_in_long_runs, {**HEADS, **BIASED, **LONG, **COLUMNS, **ALL_LONG}),
    (long_runs.received_in_long_runs, {**HEADS, **BIASED, **LONG, **COLUMNS, **ALL_LONG, "IN_TURNS": True}),
    (long_runs.received_in_long_runs, {**HEADS, **BIASED, **GATHERED, **COLUMNS}),
    (long_runs.received_in_long_runs, {**HEADS, **BIASED, **GATHERED, "QUERIES": 16, **COLUMNS}),
    (long_runs.received_in_long_runs, {**HEADS, **WINDOWS, **GATHERED, **COLUMNS}),
    (counted._counted_rows, {"EVERY": 8, "SHORT": 256, "ROWS": 512}),
    (counted._counted_rows, {"EVERY": 0, "SHORT": 256, "ROWS": 512}),
    (first._first_tokens, {**HEADS, **BIASED, "KEYS": 128}),
    (attention._whole_runs, {**HEADS, **WINDOWS, "LONGER_THAN": 128, "WIDEST": 256, "QUERIES": 64, **BY_VALUE, **ALL}),
    (long_runs.long_runs, {**HEADS, **WINDOWS, **LONG}),
    (long_runs.received_in_long_runs, {**HEADS, **WINDOWS, **LONG, **COLUMNS, **ALL_LONG}),
    (first._first_tokens, {**HEADS, **WINDOWS, "KEYS": 32}),
    (attention._whole_runs, {**HEADS, **DISTANCES, "LONGER_THAN": 0, "WIDEST": 128, "QUERIES": 64, **BY_VALUE, **ALL}),
    (long_runs.long_runs, {**HEADS, **DISTANCES, **GATHERED}),
    (long_runs.received_in_long_runs, {**HEADS, **DISTANCES, **GATHERED, **COLUMNS, **ALL_LONG}),
    (first._first_tokens, {**HEADS, **DISTANCES, "KEYS": 32}),
    (distances._distance_products, {**HEADS, "DISTANCES": 512, "OF_KEYS": 1, "ROWS": 64, "COLUMNS": 64}),
    (prune._decide_and_compact, {"HEADS": 12, "PAPER": True, "RUNS": 4, "BLOCK": 128, **BY_VALUE, **ALL}),
    (prune._decide_and_compact, {"HEADS": 12, "PAPER": False, "RUNS": 4, "BLOCK": 128, "BY_VALUE": False, "EVERY": 8}),
    (prune._decide, {"HEADS": 12, "PAPER": True, "BLOCK": 1024, **BY_VALUE, **ALL}),
    (prune._decide, {"HEADS": 12, "PAPER": True, "BLOCK": 1024, "BY_VALUE": False, "EVERY": 8}),
    (prune._compact, {"BLOCK": 1024, "COUNTS": 1024}),
    (linear._linear, {**TILE, "INPUTS": 768, "OUTPUTS": 3072, "PARTS": 1, "ACTIVATION": "gelu", "AHEAD": False}),
    (
        linear._linear,
        {**TILE, "INPUTS": 312, "OUTPUTS": 100, "PARTS": 3, "ACTIVATION": "gelu_tanh", "AHEAD": True, "rows": None},
    ),
    (linear._linear, {**GATED, "OUTPUTS": 100, "INPUTS": 312, "ACTIVATION": "silu", "AHEAD": True}),
    (linear._linear, {name: value for name, value in GATED.items() if name != "rows"}),
    (linear._linear, {**TURNED, "OUTPUTS": 300, "TURNED": 192}),
    (norm._add_norm, {**ROW, "PARTS": 3}),
    (norm._add_norm, {**ROW, "PARTS": 1, "residual": None, "sums": None}),
    (embeddings._embed, ROW),
    (rotary._rotate, {"ROW": 2304, "HALF": 32, "TILE_HALF": 32, "ROWS": 32}),
    (rotary._rotate, {"ROW": 1152, "HALF": 24, "TILE_HALF": 32, "ROWS": 32, "count": None}),
    *((gate._gated, {"WIDTH": 768, "ACTIVATION": name, "ROWS": 8, "COLUMNS": 256}) for name in gate.ACTIVATIONS),
    (behind._leave, BEHIND),
    (behind._leave, {**BEHIND, "keep": None}),
    (behind._mean, BEHIND),
]
GENERATIONS = ((80, "*bf16"), (90, "*fp16"))
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program may use


def of_long_runs(capability: int) -> Iterator[tuple[Any, dict[str, Any], Tiles]]:
    """The two passes in all tiles that there are for them."""
    for width, newest in RUNGS.items():
        row, room = 2 * width, SHARED[capability]
        one = {**HEADS, **UNBIASED, "WIDTH": width, "TILE_WIDTH": width, "LONGER_THAN": 64, "WIDEST": 1024}
        for rung in newest if capability >= 90 else PLAIN:
            for tiles, lists in ((rung.columns, ALL_LONG), (rung.listed, {})):
                tiles = fitting(tiles, held=tiles.keys, streamed=tiles.queries, row=row, room=room)
                flags = {"BY_VALUE": True, "KEYS_AS_ROWS": tiles.keys_as_rows}
                yield long_runs.received_in_long_runs, {**one, **flags, **lists}, tiles
            tiles = fitting(rung.plain, held=rung.plain.queries, streamed=2 * rung.plain.keys, row=row, room=room)
            yield long_runs.long_runs, one, tiles
    far = {**HEADS, **DISTANCES, "IN_TURNS": False, "LONGER_THAN": 64, "WIDEST": None}
    for rung in DISTANT:
        yield long_runs.received_in_long_runs, {**far, **COLUMNS, **ALL_LONG}, rung.columns
        yield long_runs.received_in_long_runs, {**far, **COLUMNS}, rung.listed
        yield long_runs.long_runs, far, rung.plain


def ends() -> Iterator[tuple[Any, dict[str, Any], plans.Tile, str]]:
    """The products that end in a gate or in turns, in half precision and e4m3: in the largest tile that there is for
    them, which has the fewest registers to spare, or in all of them, where the script is asked for resources."""
    every = "--resources" in sys.argv
    for tiles, in_eight in ((plans.TILES, ""), (plans.EIGHT_TILES, "result values weight numbers")):
        for one in tiles if every else tiles[:1]:
            sizes = {"ROWS": one.rows, "DEPTH": one.depth}
            yield linear._linear, {**GATED, **sizes, "COLUMNS": one.columns // 2}, one, in_eight
            if one.columns % (2 * TURNED["HALF"]) == 0:
                given = in_eight.replace("result ", "")
                named = {**TURNED, **sizes, "COLUMNS": one.columns, **({"units": None} if given else {})}
                yield linear._linear, named, one, given


# With what is e4m3 in them, for which compute capability 8.0 has no conversion.
WIDE_TILE = {**TILE, "ROWS": 128, "DEPTH": 128}
IN_EIGHT: list[tuple[Any, dict[str, Any], str]] = [
    (
        linear._linear,
        {**WIDE_TILE, "INPUTS": 768, "OUTPUTS": 3072, "PARTS": 1, "ACTIVATION": "gelu", "AHEAD": False, "rows": None},
        "result values weight numbers",
    ),
    (
        linear._linear,
        {**WIDE_TILE, "INPUTS": 768, "OUTPUTS": 768, "PARTS": 1, "ACTIVATION": "none", "AHEAD": False, "units": None},
        "values weight numbers",
    ),
    (norm._add_norm, {**ROW, "PARTS": 1, "sums": None}, "eight"),
    (eight._in_eight, ROW, "result"),
    (gate._gated, {"WIDTH": 768, "ACTIVATION": "gelu", "ROWS": 8, "COLUMNS": 256}, "result"),
    (
        attention._whole_runs,
        {**HEADS, **UNBIASED, "LONGER_THAN": 0, "WIDEST": 128, "QUERIES": 64, **BY_VALUE, **ALL},
        "context",
    ),
    (long_runs.long_runs, {**HEADS, **BIASED, **LONG}, "context"),
    (first._first_tokens, {**HEADS, **BIASED, "KEYS": 32}, "context"),
]


def compile_for(
    capability: int,
    kernel: Any,
    constants: dict[str, Any],
    *,
    half: str,
    in_eight: str = "",
    tiles: Tiles | None = None,
    tile: plans.Tile | None = None,
) -> Any:
    biased = "bias_row" in kernel.arg_names
    types = {**TYPE_OF, "bias": "*fp32"} if biased else TYPE_OF
    types = {**types, **dict.fromkeys(in_eight.split(), "*fp8e4nv")}
    absent = {name: None for name in ("units", "worth", "eight") if name in kernel.arg_names and not in_eight}
    constants = {**absent, **constants, "EARLY": capability >= 90}
    if kernel is linear._linear:  # tiles, but for rows that are gathered
        rows, columns, depth = (constants[name] for name in ("ROWS", "COLUMNS", "DEPTH"))
        number = types.get("weight", half)[1:]
        box = f"2,{columns},{depth}" if constants["GATED"] else f"{columns},{depth}"
        types = {**types, "weight": f"tensordesc<{number}[{box}]>"}
        if "rows" in constants:
            types["values"] = f"tensordesc<{number}[{rows},{depth}]>"
    if tiles is not None:
        constants = {**constants, "QUERIES": tiles.queries, "KEYS": tiles.keys}
        if tiles.described:
            streamed = tiles.keys if kernel is long_runs.long_runs else tiles.queries
            types = {**types, "tiles": f"tensordesc<{half[1:]}[{streamed},{constants['WIDTH']}]>"}
        else:
            constants["tiles"] = None
    signature = {name: "constexpr" if name in constants else types.get(name, half) for name in kernel.arg_names}
    signature.update({name: "constexpr" for name in kernel.arg_names if name.isupper()})
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, places, aligned)
    options = {"num_warps": 4} if tiles is None else tiles.options()
    if tile is not None:
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]
    return compiled


def resources(compiled: Any) -> dict[str, int]:
    """Registers of a thread, bytes of its stack (where they spill), and shared memory."""
    with TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(compiled.asm["cubin"])
        command = (triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", binary)
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name.lower(): int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", said)}
    return {**found, "shared": compiled.metadata.shared}


def launched() -> set[Any]:
    """All kernels that there are: what the host launches says whether it may start early."""
    modules = [import_module(f"{kernels.__name__}.{module.name}") for module in iter_modules(kernels.__path__)]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, triton.JITFunction)]
    return {value for value in values if "EARLY" in value.arg_names} - {toolchain.begin}


if __name__ == "__main__":
    left_out = launched() - {kernel for kernel, *_ in KERNELS} - {eight._in_eight}  # which makes nothing but e4m3
    assert not left_out, f"not in KERNELS: {', '.join(sorted(kernel.__name__ for kernel in left_out))}"
    seen: set[Any] = set()
    for number, (kernel, constants) in enumerate(KERNELS):
        # A kernel's first variant for both, and further ones in turn for one of them: what the compiler refuses, types
        # and shapes, is of the variant, and not of the GPU.
        for capability, half in GENERATIONS if kernel not in seen else [GENERATIONS[number % 2]]:
            compile_for(capability, kernel, constants, half=half)
        seen.add(kernel)
    # The newest has tiles of its own; those of the others are looked at where resources are asked for.
    for capability, half in GENERATIONS if "--resources" in sys.argv else GENERATIONS[1:]:
        for kernel, constants, tiles in of_long_runs(capability):
            used = resources(compile_for(capability, kernel, constants, half=half, tiles=tiles))
            if "--resources" in sys.argv:
                print(capability, kernel.fn.__name__, constants["WIDTH"], tiles, used, flush=True)
            assert used["shared"] <= SHARED[capability] and used["stack"] <= 16, (capability, tiles, used)
    for kernel, constants, tile, in_eight in ends():
        used = resources(compile_for(90, kernel, constants, half="*fp16", in_eight=in_eight, tile=tile))
        if "--resources" in sys.argv:
            end = "gate" if constants["GATED"] else "turns"
            print(90, kernel.fn.__name__, end, in_eight and "e4m3", tile[:6], used, flush=True)
        assert used["shared"] <= SHARED[90] and used["stack"] <= 16, (tile, used)
    for kernel, constants, in_eight in IN_EIGHT:
        compile_for(90, kernel, constants, half="*fp16", in_eight=in_eight)
