"""Matrix products whose number of rows is on the device, with gather, bias, activation and residual on the way.

Programs are numbered over the live tiles only, so that those past them, which leave at once, are the last to start:
numbered over the capacity, they would lie between the others and leave processors idle.
"""
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.scores import at_least_float32
from thresher.engine.kernels.toolchain import (
    RUNS_INTERPRETED,
    autotuned,
    blocks,
    dot,
    jit,
    live,
    live_rows,
    power_of_two,
    require_contiguous,
    tl,
    triton,
    with_capacity,
)

ACTIVATIONS = ("none", "gelu", "gelu_tanh")

# Rows, columns and depth of a tile, warps, stages of the pipeline.
TILES = (
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 32, 128, 4, 4),
    (32, 64, 128, 4, 4),
    (16, 64, 128, 4, 5),
    (16, 32, 256, 2, 4),
)


def linear(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """activation(values[rows] @ weight.T + bias) + residual[rows]: (capacity, outputs), in the dtype of the values.

    values: (any, inputs), contiguous rows; weight: (outputs, inputs); bias: (outputs,); residual: (any, outputs);
    rows: (capacity,) int32, or None: all in order; count: (1,) int32 live rows, or None: all. Sums are float32.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    result = values.new_empty(len(values) if rows is None else len(rows), len(weight))
    _launch(result, values, weight, bias, residual, rows, count, activation=activation, parts=1)
    return result


def linear_in_parts(
    values: Tensor, weight: Tensor, *, parts: int, rows: Tensor | None = None, count: Tensor | None = None
) -> Tensor:
    """Sums over parts of the inputs, (parts, capacity, outputs) float32; all together they are values[rows] @ weight.T.

    A product with few rows and columns has few tiles; divided along its inputs as well, it fills the GPU. add_norm
    takes the parts and adds them up in order. The arguments are those of linear.
    """
    capacity = len(values) if rows is None else len(rows)
    result = values.new_empty(parts, capacity, len(weight), dtype=torch.float32)
    _launch(result, values, weight, None, None, rows, count, activation="none", parts=parts)
    return result


def linear_reference(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    rows: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """The same in plain torch."""
    capacity = len(values) if rows is None else len(rows)
    chosen = live(values, count) if rows is None else values[live(rows, count)]
    result = F.linear(chosen, weight, bias)
    if activation != "none":
        result = F.gelu(result, approximate="tanh" if activation == "gelu_tanh" else "none")
    if residual is not None:
        result = result + (live(residual, count) if rows is None else residual[live(rows, count)])
    return with_capacity(result, capacity)


def linear_in_parts_reference(
    values: Tensor, weight: Tensor, *, parts: int, rows: Tensor | None = None, count: Tensor | None = None
) -> Tensor:
    """The same in plain torch, but all in the first part: only the sum is defined."""
    values, weight = at_least_float32(values), at_least_float32(weight)
    product = linear_reference(values, weight, rows=rows, count=count)
    return with_capacity(product[None], parts)


def _launch(
    result: Tensor,
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    rows: Tensor | None,
    count: Tensor | None,
    *,
    activation: str,
    parts: int,
) -> None:
    capacity = result.shape[-2]
    outputs, inputs = weight.shape
    if values.shape[1] != inputs:
        raise ValueError(f"values of width {values.shape[1]} do not fit a matrix of {inputs} inputs")
    require_contiguous(values=values, weight=weight, residual=residual)

    def grid(tile: dict[str, Any]) -> tuple[int, int]:
        return (blocks(capacity, tile["ROWS"]) * blocks(outputs, tile["COLUMNS"]), parts)

    bucket = power_of_two(capacity, least=16)
    shape = {"INPUTS": inputs, "OUTPUTS": outputs, "PARTS": parts, "ACTIVATION": activation}
    _linear[grid](result, values, weight, bias, residual, rows, count, capacity, bucket, **shape)


def configurations(tiles: Sequence[tuple[int, int, int, int, int]]) -> list[Any]:
    """Triton's form of the tiles."""
    return [
        triton.Config(
            {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "GROUP": 8}, num_warps=warps, num_stages=stages
        )
        for rows, columns, depth, warps, stages in tiles
    ]


def _plausible(choices: list[Any], arguments: dict[str, Any], **named: Any) -> list[Any]:
    """Leave out what cannot win, as each costs a compilation: tiles far from the number of rows, and in float32, which
    has no tensor cores to feed, big ones.
    """
    bucket = arguments["bucket"]
    fewest, most = min(64, bucket // 128), max(64, bucket // 4)
    area = 64 * 64 if arguments["values"].dtype == torch.float32 else 256 * 256
    return [
        each
        for each in choices
        if fewest <= each.kwargs["ROWS"] <= most and each.kwargs["ROWS"] * each.kwargs["COLUMNS"] <= area
    ]


def _measured(call: Any, quantiles: Any) -> Any:
    """Times of a launch. Triton's own 125 ms a tile add up to minutes over all shapes of a model."""
    return triton.testing.do_bench(call, warmup=4, rep=20, quantiles=quantiles)


@autotuned(
    configs=configurations(TILES if not RUNS_INTERPRETED else [(32, 32, 32, 4, 1)]),  # it has nothing to measure
    key=["bucket", "INPUTS", "OUTPUTS", "PARTS"],
    prune_configs_by={"early_config_prune": _plausible},
    cache_results=True,  # one choice for a machine, so that its results do not change from one process to the next
    do_bench=_measured,
)
@jit
def _linear(
    result,  # (PARTS, capacity, OUTPUTS)
    values,  # (any, INPUTS)
    weight,  # (OUTPUTS, INPUTS)
    bias,  # (OUTPUTS,), or None
    residual,  # (any, OUTPUTS), or None
    rows,  # (capacity,) int32, or None
    count,  # (1,) int32, or None
    capacity,
    bucket,  # only a key of the choice of tiles
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    end = live_rows(count, capacity)
    row_blocks = tl.cdiv(end, ROWS)
    column_blocks: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    if program >= row_blocks * column_blocks:
        return
    # Neighbouring programs take a few rows of blocks together, column by column: both operands stay in the L2 cache.
    first_block = program // (GROUP * column_blocks) * GROUP
    group = tl.minimum(row_blocks - first_block, GROUP)
    within = program % (GROUP * column_blocks)
    new = (first_block + within % group) * ROWS + tl.arange(0, ROWS)
    column = within // group * COLUMNS + tl.arange(0, COLUMNS)
    here = new < end
    old = tl.where(here, new, 0)
    if rows is not None:
        old = tl.load(rows + new, mask=here, other=0)
    old = old.to(tl.int64)

    # Rows and columns that are not there repeat others, and are not stored: the loop needs no mask for them.
    part_depth: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH) * DEPTH
    begin = tl.program_id(1) * part_depth
    depth = tl.arange(0, DEPTH)
    left = values + old[:, None] * INPUTS + (begin + depth)[None, :]
    right = weight + (column % OUTPUTS)[:, None] * INPUTS + (begin + depth)[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for done in range(0, part_depth, DEPTH):
        if INPUTS % (PARTS * DEPTH) == 0:
            sums = dot(tl.load(left), tl.trans(tl.load(right)), sums)
        else:
            mask = (depth < INPUTS - begin - done)[None, :]
            sums = dot(tl.load(left, mask=mask, other=0.0), tl.trans(tl.load(right, mask=mask, other=0.0)), sums)
        left += DEPTH
        right += DEPTH

    there = column < OUTPUTS
    if bias is not None:
        sums += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "gelu":
        sums = 0.5 * sums * (1.0 + tl.erf(sums * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # tanh by way of the sigmoid
        sums = sums * tl.sigmoid(1.5957691216057308 * (sums + 0.044715 * sums * sums * sums))
    mask = here[:, None] & there[None, :]
    if residual is not None:
        sums += tl.load(residual + old[:, None] * OUTPUTS + column[None, :], mask=mask, other=0.0).to(tl.float32)
    place = tl.program_id(1).to(tl.int64) * capacity + new
    at = result + place[:, None] * OUTPUTS + column[None, :]
    tl.store(at, sums.to(result.dtype.element_ty), mask=mask)
