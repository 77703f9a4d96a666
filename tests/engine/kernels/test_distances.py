"""What distances add to attention, gathered from tables: lengths around the borders of tiles, gaps, distances of all
kinds, one term or both."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import DEVICES, SPARE, assert_as_exact_as_plain_torch, numbers, starts
from tests.engine.kernels.test_places import check, distances_of
from tests.models.families import in_pairs
from thresher.engine.kernels import tiles
from thresher.engine.kernels.attention import attention, attention_reference
from thresher.engine.kernels.distances import Distances
from thresher.engine.kernels.tiles import Tiles
from thresher.models.deberta import rows_of_distances

BORDERS = [128, 129, 0, 64, 65, 1, 191, 192, 193]
PLACES = ["without gaps", "every third", "a few far away"]


def placed(lengths: list[int], places: str, device: str) -> Tensor:
    """Positions of live tokens, which rise in every run."""
    runs = []
    for n in lengths:
        run = torch.arange(n) * (3 if places == "every third" else 1)
        run[n // 2 :] += 700 if places == "a few far away" else 0  # there is no token between them
        runs.append(run)
    return torch.cat([*runs, torch.full((SPARE,), 10**6)]).int().to(device)


def bucketed(device: str, *, heads: int, head_width: int, longest: int, terms: str) -> Distances:
    """As DeBERTa-v3 has them, in logarithmic buckets, with fewer of them; or one for each near distance, as v2 may."""
    rows = rows_of_distances(32, 32 if terms != "keys" else 0, 64, longest=longest, device=torch.device("cpu"))
    reach = len(rows) // 2
    index = rows[torch.arange(1 - longest, longest).clamp(-reach, reach) + reach].int().to(device)
    keys, queries = (
        numbers(heads, 64, head_width, dtype=torch.float16, device=device, seed=seed)
        if terms in ("both", term)
        else None
        for seed, term in ((5, "keys"), (6, "queries"))
    )
    return Distances(keys=keys, queries=queries, index=index)


@pytest.mark.parametrize(
    ("places", "terms", "head_width", "score_queries"),
    in_pairs(PLACES, ["both", "keys", "queries"], [32, 64], [1, 4, 0]),
)
@pytest.mark.parametrize("device", DEVICES)
def test_agrees_with_the_twin(places: str, terms: str, head_width: int, score_queries: int, device: str) -> None:
    positions = placed(BORDERS, places, device)
    distances = bucketed(device, heads=2, head_width=head_width, longest=1000, terms=terms)
    judged: Any = {"score": "value", "score_queries": score_queries, "head_width": head_width, "divisor": 9.0}
    check(BORDERS, torch.float16, device, distances=distances, positions=positions, **judged)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_are_longer_than_the_models(device: str) -> None:
    distances = bucketed(device, heads=1, head_width=32, longest=3000, terms="both")
    positions = placed([600], "a few far away", device)
    check([600], torch.float16, device, heads=1, head_width=32, distances=distances, positions=positions)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(128, 64), (64, 128), (32, 32), (128, 16)])
def test_tiles_of_any_shape(shape: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are shared out in groups of up to 32 neighbours."""
    given = Tiles(*shape, 8, 1)
    other = (tiles.Rung(64, given, given, given),)
    monkeypatch.setattr(tiles, "DISTANT", other)
    lengths = [200, 3, 129]
    check(lengths, torch.float16, device, distances=distances_of(lengths, torch.float16, device))


@pytest.mark.parametrize("device", DEVICES)
def test_what_lies_between_runs_is_not_read(device: str) -> None:
    """Tables are undefined there, and what they hold may be no number."""
    lengths, heads, width = [70, 0, 140], 1, 16
    distances = distances_of(lengths, torch.float16, device, heads=heads, head_width=width)
    qkv = numbers(210 + SPARE, 3 * width, dtype=torch.float16, device=device, live=210)
    named: Any = {"heads": heads, "max_length": 140, "score": "attention", "distances": distances}
    named["positions"] = placed(lengths, "every third", device)
    found, exact = (way(qkv, starts(lengths, device), **named)[0] for way in (attention, attention_reference))
    truth = attention_reference(qkv.float(), starts(lengths, device), **named)[0].double()
    assert found[:210].isfinite().all()
    assert_as_exact_as_plain_torch(found[:210], exact[:210], truth[:210])
