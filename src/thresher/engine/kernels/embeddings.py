"""Word, position and token type embeddings, added and normalised in one launch."""
# mypy: disable-error-code="no-untyped-def"

import torch.nn.functional as F
from torch import Tensor

from thresher.engine.kernels.norm import normalised
from thresher.engine.kernels.toolchain import (
    begin,
    blocks,
    jit,
    launching,
    live,
    live_rows,
    power_of_two,
    require_contiguous,
    tl,
    with_capacity,
)


def embed(
    input_ids: Tensor,
    position_rows: Tensor,
    word: Tensor,
    position: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    epsilon: float,
    token_type: Tensor | None = None,
    token_types: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """LayerNorm(word[input_ids] + position[position_rows] + token_type[token_types]): (capacity, width).

    input_ids, position_rows, token_types: (capacity,) integers; word, position, token_type: (any, width), tables of one
    dtype, also the result's; position may be None; weight, bias: (width,); count: (1,) int32 live tokens, or None: all.
    Token types that are not given are zeros.
    """
    require_contiguous(word=word, position=position, token_type=token_type)
    capacity, width = len(input_ids), word.shape[1]
    result = word.new_empty(capacity, width)
    tile_width = power_of_two(width)
    tile_rows = max(1, 1024 // tile_width)
    _embed[(blocks(capacity, tile_rows),)](
        result,
        input_ids,
        position_rows,
        token_types,
        word,
        position,
        token_type,
        weight,
        bias,
        count,
        capacity,
        epsilon,
        WIDTH=width,
        TILE_WIDTH=tile_width,
        ROWS=tile_rows,
        **launching(word, num_warps=4),
    )
    return result


def embed_reference(
    input_ids: Tensor,
    position_rows: Tensor,
    word: Tensor,
    position: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    epsilon: float,
    token_type: Tensor | None = None,
    token_types: Tensor | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """The same in plain torch."""
    total = word[live(input_ids, count)]
    if position is not None:
        total = total + position[live(position_rows, count)]
    if token_type is not None:
        total = total + (token_type[0] if token_types is None else token_type[live(token_types, count)])
    return with_capacity(F.layer_norm(total, total.shape[-1:], weight, bias, epsilon), len(input_ids))


@jit
def _embed(
    result,  # (capacity, WIDTH)
    input_ids,  # (capacity,)
    position_rows,  # (capacity,)
    token_types,  # (capacity,), or None
    word,  # (vocabulary, WIDTH)
    position,  # (positions, WIDTH), or None
    token_type,  # (types, WIDTH), or None
    weight,  # (WIDTH,)
    bias,  # (WIDTH,)
    count,  # (1,) int32, or None
    capacity,
    epsilon,
    WIDTH: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    first = tl.program_id(0) * ROWS
    end = live_rows(count, capacity)
    if first >= end:
        return
    row = first + tl.arange(0, ROWS)
    here = row < end
    columns = tl.arange(0, TILE_WIDTH)
    there = columns < WIDTH
    mask = here[:, None] & there[None, :]
    word_row = tl.load(input_ids + row, mask=here, other=0).to(tl.int64)
    total = tl.load(word + word_row[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if position is not None:
        place = tl.load(position_rows + row, mask=here, other=0).to(tl.int64)
        total += tl.load(position + place[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if token_type is not None:
        if token_types is not None:
            kind = tl.load(token_types + row, mask=here, other=0).to(tl.int64)
        else:
            kind = tl.zeros((ROWS,), tl.int64)
        total += tl.load(token_type + kind[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    final = normalised(total, weight, bias, epsilon, columns, there, WIDTH)
    at = row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    tl.store(result + at, final.to(result.dtype.element_ty), mask=mask)
