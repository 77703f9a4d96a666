"""Tiles of attention for runs whose keys do not fit in one: by the width of a head, and by how long a run is.

A run's own length decides, never that of the longest one beside it: tiles set the order of sums, and what is computed
for a text must not depend on its batch.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from thresher.engine.kernels.toolchain import capability, power_of_two


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile, warps, stages of the pipeline; whether tiles are loaded through descriptors, and
    whether keys, not queries, are the rows of a product (of the pass over columns)."""

    queries: int
    keys: int
    warps: int
    stages: int
    described: bool = False
    keys_as_rows: bool = False

    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Rung:
    """The tiles of runs longer than so many tokens: of the plain pass, of the pass over columns, and of that pass where
    some queries stand for all."""

    longer_than: int
    plain: Tiles
    columns: Tiles
    listed: Tiles


OTHER = 2048  # bytes of shared memory for reductions and barriers
LISTED = Tiles(128, 64, 4, 2, keys_as_rows=True)
# By the head's width: the fastest on an H200 of those in benchmarks/gpu/attention_study.jsonl (parts "plain" and
# "columns", 16,384 tokens in half precision): of runs of 200 to 512 tokens up to 1,024, of 2,048 and 8,192 beyond.
# Shorter runs than the first rung's are one tile each, where that is as fast with scores as both passes (n = 128).
RUNGS = {
    32: (
        Rung(64, Tiles(64, 64, 4, 3, described=True), Tiles(128, 64, 4, 2, True, True), LISTED),
        Rung(1024, Tiles(64, 128, 4, 3, described=True), Tiles(128, 64, 4, 2, True, True), LISTED),
    ),
    64: (
        Rung(128, Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3), LISTED),
        Rung(1024, Tiles(128, 128, 4, 3, described=True), Tiles(64, 128, 4, 2, described=True), LISTED),
    ),
    128: (
        Rung(64, Tiles(128, 64, 8, 3, True), Tiles(64, 64, 4, 2, True), replace(LISTED, queries=64)),
        Rung(1024, Tiles(128, 128, 8, 3, True), Tiles(64, 64, 4, 2, True), replace(LISTED, queries=64)),
    ),
}
# What the study had not: biases, float32, and GPUs before compute capability 9.0, where the tiles above spill; windows,
# where fewer queries see fewer keys for nothing; distances, what is gathered by which needs registers of its own.
COLUMNS = Tiles(64, 64, 4, 3)
PLAIN = (Rung(256, Tiles(128, 64, 8, 2), COLUMNS, COLUMNS),)
WINDOWED = (Rung(256, Tiles(64, 64, 4, 2), COLUMNS, COLUMNS),)
# In distances_study.jsonl ahead of eight warps, fewer registers, more stages, and of runs of 128 tokens in one tile; of
# runs of 1,024 without scores it is not, but there one and the same kernel was timed 14% apart.
GATHERING = Tiles(64, 64, 4, 1)
DISTANT = (Rung(64, GATHERING, GATHERING, GATHERING),)


def rungs(
    width: int, dtype: torch.dtype, *, newest: bool, biased: bool, windowed: bool, distant: bool
) -> tuple[Rung, ...]:
    """From the shortest runs that are not one tile to the longest; width: of a head; newest: see is_newest."""
    if distant:
        return DISTANT
    if windowed:
        return WINDOWED
    if biased or dtype == torch.float32 or not newest:
        return PLAIN
    return RUNGS[min(power_of_two(width, least=min(RUNGS)), max(RUNGS))]


def is_newest(device: torch.device) -> bool:
    """Whether it is like the GPU that was measured; the interpreter is."""
    return device.type == "cpu" or capability(device) >= (9, 0)


def fitting(tiles: Tiles, *, held: int, streamed: int, row: int, room: int) -> Tiles:
    """With fewer stages where shared memory of `room` bytes is too little for them: some GPUs have less than the one
    that was measured. held: rows of `row` bytes of a tile that stays; streamed: of those in every stage."""
    stages = (room - OTHER - row * held) // (row * streamed)
    return replace(tiles, stages=max(1, min(tiles.stages, stages)))


def shared_memory(device: torch.device) -> int:
    """Bytes that one program may use; the interpreter has no limit."""
    if device.type == "cpu":
        return 2**30
    properties: Any = torch.cuda.get_device_properties(device)  # its types know no shared memory beyond 48 KiB
    return int(properties.shared_memory_per_block_optin)
