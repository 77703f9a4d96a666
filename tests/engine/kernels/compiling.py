"""Compiles every kernel to machine code for two GPU generations; needs Triton, but no GPU. Run as a script.

The interpreter accepts what the compiler does not: types that change in a loop, a return in a branch, tiles too big.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thresher.engine.kernels import attention, distances, embeddings, first, linear, long_runs, norm, prune

TYPES = {
    "*i32": "cu_seqlens positions index counts rows count new_cu_seqlens new_positions "
    "input_ids position_rows token_types",
    "*u8": "keep protected new_protected",
    "*fp32": "received log_sum_exp",
    "i32": "capacity bucket bias_row bias_head sequences",
    "fp32": "scale epsilon threshold",
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names.split()}
HEADS = {"HEADS": 12, "WIDTH": 64, "TILE_WIDTH": 64}
LONG = {"SHORT": 128, "QUERIES": 128, "KEYS": 64}
ROW = {"WIDTH": 768, "TILE_WIDTH": 1024, "ROWS": 1}
TILE = {"ROWS": 64, "COLUMNS": 128, "DEPTH": 64, "GROUP": 8}
NO_DISTANCES = {"of_queries": None, "of_keys": None, "index": None, "DISTANCES": None}
BIASED = {**NO_DISTANCES, "WINDOW": None}
UNBIASED = {**BIASED, "bias": None, "positions": None}
WINDOWS = {**NO_DISTANCES, "bias": None, "WINDOW": 64}
DISTANCES = {"bias": None, "DISTANCES": 512, "WINDOW": None}
GATHERED = {"SHORT": 128, "QUERIES": 64, "KEYS": 64}
BY_VALUE = {"BY_VALUE": True}  # does all that attention scores need, and more

KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (attention._whole_runs, {**HEADS, **UNBIASED, "LONGER_THAN": 0, "WIDEST": 128, "QUERIES": 64, **BY_VALUE}),
    (
        attention._whole_runs,
        {**HEADS, **BIASED, "received": None, "LONGER_THAN": 0, "WIDEST": 64, "QUERIES": 64, "BY_VALUE": False},
    ),
    (long_runs.long_runs, {**HEADS, **BIASED, **LONG}),
    (long_runs.received_in_long_runs, {"NATURAL": True, **HEADS, **BIASED, **LONG, **BY_VALUE}),
    (first._first_tokens, {**HEADS, **BIASED, "KEYS": 128}),
    (attention._whole_runs, {**HEADS, **WINDOWS, "LONGER_THAN": 128, "WIDEST": 256, "QUERIES": 64, **BY_VALUE}),
    (long_runs.long_runs, {**HEADS, **WINDOWS, **LONG}),
    (long_runs.received_in_long_runs, {"NATURAL": False, **HEADS, **WINDOWS, **LONG, **BY_VALUE}),
    (first._first_tokens, {**HEADS, **WINDOWS, "KEYS": 32}),
    (attention._whole_runs, {**HEADS, **DISTANCES, "LONGER_THAN": 0, "WIDEST": 128, "QUERIES": 64, **BY_VALUE}),
    (long_runs.long_runs, {**HEADS, **DISTANCES, **GATHERED}),
    (long_runs.received_in_long_runs, {"NATURAL": False, **HEADS, **DISTANCES, **GATHERED, **BY_VALUE}),
    (first._first_tokens, {**HEADS, **DISTANCES, "KEYS": 32}),
    (distances._distance_products, {**HEADS, "DISTANCES": 512, "OF_KEYS": 1, "ROWS": 64, "COLUMNS": 64}),
    (prune._decide_and_compact, {"HEADS": 12, "PAPER": True, "RUNS": 4, "BLOCK": 128, **BY_VALUE}),
    (prune._decide, {"HEADS": 12, "PAPER": True, "BLOCK": 1024, **BY_VALUE}),
    (prune._compact, {"BLOCK": 1024, "COUNTS": 1024}),
    (linear._linear, {**TILE, "INPUTS": 768, "OUTPUTS": 3072, "PARTS": 1, "ACTIVATION": "gelu", "AHEAD": False}),
    (
        linear._linear,
        {**TILE, "INPUTS": 312, "OUTPUTS": 100, "PARTS": 3, "ACTIVATION": "gelu_tanh", "AHEAD": True, "rows": None},
    ),
    (norm._add_norm, {**ROW, "PARTS": 3}),
    (norm._add_norm, {**ROW, "PARTS": 1, "residual": None, "sums": None}),
    (embeddings._embed, ROW),
]


def compile_for(capability: int, kernel: Any, constants: dict[str, Any], *, half: str) -> None:
    biased = "bias_row" in kernel.arg_names
    types = {**TYPE_OF, "bias": "*fp32"} if biased else TYPE_OF
    constants = {**constants, "EARLY": capability >= 90}
    if kernel is linear._linear:  # tiles, but for rows that are gathered
        rows, columns, depth = (constants[name] for name in ("ROWS", "COLUMNS", "DEPTH"))
        types = {**types, "weight": f"tensordesc<{half[1:]}[{columns},{depth}]>"}
        if "rows" in constants:
            types["values"] = f"tensordesc<{half[1:]}[{rows},{depth}]>"
    signature = {name: "constexpr" if name in constants else types.get(name, half) for name in kernel.arg_names}
    signature.update({name: "constexpr" for name in kernel.arg_names if name.isupper()})
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, places, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"]


if __name__ == "__main__":
    for kernel, constants in KERNELS:
        for capability, half in ((80, "*bf16"), (90, "*fp16")):
            compile_for(capability, kernel, constants, half=half)
