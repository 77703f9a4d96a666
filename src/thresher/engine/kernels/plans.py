"""Which tile a matrix product takes, and in how many parts, by arithmetic: nothing is measured at start."""

from typing import NamedTuple

import torch
from torch import Tensor

from thresher.engine.eight import EIGHT
from thresher.engine.kernels.toolchain import blocks, processors


class Tile(NamedTuple):
    """Rows, columns and depth of a tile, warps, stages of the pipeline, programs to a processor; then microseconds: for
    1,000 inputs, around them, and for an activation. They are an H200's (benchmarks/gpu/NOTES.md), and only compared
    with each other.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int
    per_input: float = 1.0
    around: float = 0.0
    activation: float = 0.0


TILES = (
    Tile(128, 256, 64, 8, 3, 1, 10.2, 2.8, 4.2),
    Tile(128, 128, 64, 8, 6, 1, 5.5, 1.6, 1.6),
    Tile(64, 256, 64, 4, 4, 1, 5.1, 1.8, 3.3),
    Tile(64, 64, 128, 4, 4, 2, 2.4, 0.6, 0.5),
    Tile(64, 32, 128, 4, 3, 2, 2.1, 0.5, 0.5),
)
# For e4m3. The last two were timed with slower sums than they have now, so for few rows the others are taken too soon.
EIGHT_TILES = (
    Tile(128, 256, 128, 8, 3, 1, 4.7, 3.7, 1.9),
    Tile(128, 128, 128, 8, 4, 1, 2.8, 2.1, 0.9),
    Tile(128, 128, 128, 4, 3, 2, 4.3, 1.0, 0.1),
    Tile(64, 256, 128, 4, 3, 1, 2.9, 2.0, 1.5),
    Tile(64, 128, 128, 4, 4, 2, 2.0, 0.9, 0.3),
    Tile(64, 64, 128, 4, 3, 3, 1.6, 0.4, 0.3),
    Tile(64, 32, 128, 4, 4, 2, 1.2, 0.3, 0.1),
)
PLAIN_TILE = Tile(32, 64, 32, 4, 2, 2)  # float32, which has no tensor cores to feed
MOST_PARTS = 8
LARGEST_OF_PARTS = 128 * 128  # numbers in a tile
PARTS_PER_MICROSECOND = 5e5  # float32 sums of parts, stored and loaded again
# What follows the sums, in activations of all the numbers of a tile. That of gates and of turns is estimated, not
# measured: half of the numbers are activated, but also only half are stored; turns are few multiplications, and wait
# for angles.
ACTIVATED, GATED, TURNED = 1.0, 0.35, 0.2
NARROWEST_TURNED = 16  # Triton 3.6 cannot part eight columns
WIDEST_TURNED = 128  # of a head: with more, a row's angles spill


class Plan(NamedTuple):
    """Estimated microseconds, in how many parts the inputs are divided, and the tile."""

    microseconds: float
    parts: int
    tile: Tile


def estimate(rows: int, weight: Tensor, *, end: float = 0.0, divisible: bool = False, multiple: int = 1) -> Plan:
    """The fastest plan for so many rows. end: see ACTIVATED; divisible: whether the inputs may be divided; multiple: of
    what the tile's columns must be one.

    Programs of one processor share its units, so a product takes as long as the processor with most tiles.
    """
    outputs, inputs = weight.shape
    choices = []
    for tile in tiles_for(weight):
        for parts in (1, 2, 4, MOST_PARTS) if divisible else (1,):
            # Parts are float32: those of the largest tile do not fit in shared memory beside what is loaded ahead.
            if parts > 1 and (parts * tile.depth > inputs or tile.rows * tile.columns > LARGEST_OF_PARTS):
                continue
            if tile.columns % multiple:
                continue
            tiles = parts * blocks(rows, tile.rows) * blocks(outputs, tile.columns)
            each = inputs / parts / 1000 * tile.per_input + tile.around + end * tile.activation
            moved = parts * rows * outputs / PARTS_PER_MICROSECOND if parts > 1 else 0.0
            choices.append(Plan(blocks(tiles, processors(weight.device)) * each + moved, parts, tile))
    return min(choices)


def plan(
    rows: int, weight: Tensor, *, end: float = 0.0, divisible: bool = False, multiple: int = 1
) -> tuple[Tile, int]:
    """The tile for so many rows, and in how many parts to divide the inputs if that is possible, by `estimate`."""
    if weight.dtype == torch.float32:
        return PLAIN_TILE, 1
    _, parts, tile = estimate(rows, weight, end=end, divisible=divisible, multiple=multiple)
    return tile, parts


def holds(weight: Tensor, width: int) -> bool:
    """Whether there is a tile of whole heads of this width that can be turned in registers."""
    return NARROWEST_TURNED <= width <= WIDEST_TURNED and any(tile.columns % width == 0 for tile in tiles_for(weight))


def tiles_for(weight: Tensor) -> tuple[Tile, ...]:
    if weight.dtype == torch.float32:
        return (PLAIN_TILE,)
    return EIGHT_TILES if weight.dtype == EIGHT else TILES
