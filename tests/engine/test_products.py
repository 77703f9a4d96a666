"""What decides whether a gate or turns are in the end of a product, and that all ways give the same numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import numbers
from tests.engine.test_cuda_executor import DEVICE, needs_triton  # noqa: F401  (a fixture, used by every test)
from thresher.core.places import turns as tables_of
from thresher.engine.cuda import products
from thresher.engine.cuda.products import Count, gated_product, turned_product
from thresher.engine.kernels import plans
from thresher.engine.kernels.rotary import Turns
from thresher.engine.weights import Affine

BOTH = frozenset({"gate", "turns"})
MODERNBERT: dict[str, Any] = {"end": plans.GATED, "moved": 3 * 2304}


@pytest.fixture
def like_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "processors", lambda device: 132)


def ends(rows: int, dtype: torch.dtype = torch.float16, *, live: int | None = None, **named: Any) -> bool:
    """Of ModernBERT-base's gate: only sizes count."""
    affine = Affine(torch.empty(2304, 768, dtype=dtype), torch.empty(2304))
    count = Count(torch.empty(1), rows if live is None else live)
    return products._in_its_end("gate", torch.empty(rows, 1), affine, count, **{**MODERNBERT, **named})


@pytest.mark.parametrize("rows", [100, 2048, 8192, 16384, 32768])
def test_the_end_of_a_product_is_cheaper_than_a_pass(rows: int, like_an_h200: None) -> None:
    assert ends(rows)


def test_an_end_that_takes_longer_than_the_pass_is_left_to_the_library(like_an_h200: None) -> None:
    assert not ends(32768, end=4.0)
    assert ends(32768, live=16384, end=4.0), "our kernel makes the product anyway"
    assert not ends(32768, torch.float32)
    assert ends(100, torch.float32)


def test_older_gpus_leave_whole_batches_to_the_library(monkeypatch: pytest.MonkeyPatch, like_an_h200: None) -> None:
    monkeypatch.setattr(products, "is_newest", lambda device: False)
    assert not ends(32768)
    assert ends(32768, live=16384)


def test_ends_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "IN_ITS_END", frozenset({"turns"}))
    assert not ends(100)


def both(affine: Affine, turns: Turns, count: Count) -> tuple[Tensor, Tensor]:
    values = numbers(45, affine.weight.shape[1], dtype=torch.float32, device=DEVICE)
    return turned_product(values, affine, turns, count), gated_product(values, affine, count, activation="silu")


@pytest.mark.parametrize("head", [16, 24])
def test_all_ways_give_the_same(head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that fit no tile are turned in a pass of their own."""
    weight, bias = (numbers(*size, dtype=torch.float32, device=DEVICE) for size in ((96, 32), (96,)))
    made = tables_of(torch.arange(45), base=1000.0, width=head)
    cosines, sines = (table[:, : head // 2].contiguous().to(DEVICE) for table in made)
    turns = Turns(torch.arange(45, dtype=torch.int32, device=DEVICE), cosines, sines, 2 * head)
    on_device = torch.tensor([45], dtype=torch.int32, device=DEVICE)
    found = []
    for named, counted in ((BOTH, on_device), (BOTH, None), (frozenset(), on_device), (frozenset(), None)):
        monkeypatch.setattr(products, "IN_ITS_END", named)
        found.append(both(Affine(weight, bias), turns, Count(counted, 45)))
    for turned, gated in found[1:]:
        torch.testing.assert_close(turned, found[0][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gated, found[0][1], atol=1e-5, rtol=1e-5)
