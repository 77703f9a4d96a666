"""What dropped tokens leave behind: every row at its token's place, and the mean of each sequence."""

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.cases import BATCHES, DEVICES, SPARE, starts
from thresher.engine.kernels.behind import leave_behind, leave_behind_reference, mean_behind, mean_behind_reference

WIDTHS = (32, 60, 384)


def case(lengths: list[int], width: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """hidden, cu_seqlens, positions, starts, keep: every second token of longer texts was dropped before."""
    generator = torch.Generator().manual_seed(len(lengths))
    before = [2 * n for n in lengths]
    hidden = torch.randn(sum(lengths) + SPARE, width, generator=generator)
    positions = torch.cat([torch.arange(n) * 2 for n in [*lengths, SPARE]]).int()
    keep = torch.rand(len(hidden), generator=generator) < 0.5
    parts = (hidden, starts(lengths, "cpu"), positions, starts(before, "cpu"), keep)
    return tuple(part.to(device) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("batch", BATCHES)
def test_leaving_agrees_with_the_twin(batch: str, width: int, device: str) -> None:
    hidden, cu_seqlens, positions, first, keep = case(BATCHES[batch], width, device)
    for flags in (keep, None):
        found, expected = (torch.full((2 * len(hidden), width), -7.0, device=device) for _ in range(2))
        leave_behind(found, hidden, cu_seqlens, positions, first, keep=flags)
        leave_behind_reference(expected, hidden, cu_seqlens, positions, first, keep=flags)
        assert torch.equal(found, expected)
        live = int(cu_seqlens[-1])
        written = live if flags is None else int((~flags[:live]).sum())
        assert int((found != -7.0).any(dim=1).sum()) == written


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("batch", BATCHES)
def test_means_agree_with_the_twin(batch: str, dtype: torch.dtype, device: str) -> None:
    hidden, cu_seqlens, *_ = case(BATCHES[batch], 60, device)
    found = mean_behind(hidden.to(dtype), cu_seqlens)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, mean_behind_reference(hidden.to(dtype), cu_seqlens), atol=1e-5, rtol=1e-5)
    assert torch.equal(found, mean_behind(hidden.to(dtype), cu_seqlens)), "sums have one order"
