"""Distances and rotations on the CPU against their readable twins, and the memory that is kept for them."""

import threading
from itertools import pairwise

import pytest
import torch

from tests.engine.test_windows import positions_of
from thresher.core.places import Relative, rotated, turns
from thresher.engine.backends.attention import ROOM, TILE, laid_out
from thresher.engine.backends.relative import long_bias, relative_bias
from thresher.engine.backends.rotary import ROWS, rotate_

HEADS, WIDTH, SPAN = 3, 16, 40


def distances(*, keys: bool, queries: bool) -> Relative:
    """Buckets as DeBERTa has them: near distances have their own, far ones share some, and the ends all."""
    torch.manual_seed(3)
    far = torch.arange(-200, 201)
    rows = (far.sign() * far.abs().float().pow(0.75)).round().long().clamp(-SPAN, SPAN - 1) + SPAN
    tables = (torch.randn(HEADS, 2 * SPAN, WIDTH) if asked else None for asked in (keys, queries))
    return Relative(*tables, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("keys", "queries"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 63, 130])
def test_tiles_of_a_long_run(tokens: int, gaps: bool, keys: bool, queries: bool, dtype: torch.dtype) -> None:
    relative, positions = distances(keys=keys, queries=queries), positions_of(tokens, gaps=gaps)
    query, key = laid_out(torch.randn(2, 1, HEADS, tokens, WIDTH).to(dtype), dtype)
    exact_query, exact_key = (part[:, :tokens].double() for part in (query, key))
    wanted = relative.terms(exact_query, relative.of_keys(exact_key), positions, positions)
    tiles = long_bias(relative, query, key, positions=positions)
    for start, end in pairwise([0, *range(16, tokens, 48), tokens]):
        tile = slice(start, end + 5 if end == tokens else end)  # the last tile's rows end behind the run
        torch.testing.assert_close(tiles(tile)[0].double(), wanted[:, tile], atol=1e-5, rtol=1e-5)
    at_once = relative_bias(
        relative, *(part[:, :tokens].float() for part in (query, key)), at=positions[None], of=positions[None]
    )
    torch.testing.assert_close(at_once(slice(None))[0].double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 3 * ROWS + 1])
def test_rotations_in_place(rows: int, dtype: torch.dtype) -> None:
    """Of queries and keys in a matrix that has values, too, which stay."""
    whole = torch.randn(rows, 3 * HEADS, WIDTH).to(dtype)
    cosines, sines = turns(torch.arange(rows) * 7, base=10_000.0, width=WIDTH)
    expected = whole.clone()
    expected[:, : 2 * HEADS] = rotated(whole[:, : 2 * HEADS], cosines[:, None], sines[:, None])
    rotate_(whole[:, : 2 * HEADS], cosines, sines)
    exact = {"atol": 1e-6, "rtol": 1e-6} if dtype == torch.float32 else {"atol": 2**-7, "rtol": 2**-8}
    torch.testing.assert_close(whole, expected, **exact)
    assert torch.equal(whole[:, 2 * HEADS :], expected[:, 2 * HEADS :])


def test_kept_room() -> None:
    """One place for one use and thread; it can be written whatever mode it was made in; what is big is not kept."""
    with torch.inference_mode():
        first = ROOM.empty("a test", (3, 4), torch.float32)
    assert ROOM.empty("a test", (5, 2), torch.float32).zero_().data_ptr() == first.data_ptr()
    assert ROOM.empty("a test", (3, 4), torch.bfloat16).data_ptr() != first.data_ptr()
    assert ROOM.empty("another", (3, 4), torch.float32).data_ptr() != first.data_ptr()
    elsewhere: list[int] = []
    other = threading.Thread(target=lambda: elsewhere.append(ROOM.empty("a test", (3, 4), torch.float32).data_ptr()))
    other.start()
    other.join()
    assert elsewhere != [first.data_ptr()]
    big = ROOM.empty("a test", (2 * TILE + 1,), torch.float32)
    assert len(big) == 2 * TILE + 1 and len(ROOM.kept["a test", torch.float32]) == 12
