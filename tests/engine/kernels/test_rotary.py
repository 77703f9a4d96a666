"""Rotations and the gated feed-forward agree with their twins, and touch live rows only."""

import pytest
import torch

from tests.engine.kernels.cases import DEVICES, HALVES, SPARE, assert_as_exact_as_plain_torch, doubled, numbers
from thresher.core.places import turns
from thresher.engine.kernels.gate import ACTIVATIONS, gated, gated_reference
from thresher.engine.kernels.rotary import Turns, rotate_, rotate_reference

DTYPES = [torch.float32, *HALVES]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("live", "heads", "head_width", "parts"), [(1, 1, 8, 3), (33, 3, 24, 3), (70, 2, 64, 2)])
def test_rotation_agrees_with_the_twin(
    live: int, heads: int, head_width: int, parts: int, dtype: torch.dtype, device: str
) -> None:
    width = heads * head_width
    columns = (parts - 1) * width
    states = numbers(live + SPARE, parts * width, dtype=dtype, device=device, live=live)
    positions = torch.full((live + SPARE,), 10**6, dtype=torch.int32)
    positions[:live] = torch.arange(live).mul(3).int()
    positions = positions.to(device)
    tables = [
        t[:, : head_width // 2].contiguous() for t in turns(torch.arange(3 * live), base=1000.0, width=head_width)
    ]
    cosines, sines = (table.to(device) for table in tables)
    count = torch.tensor([live], dtype=torch.int32, device=device)
    turning = Turns(positions, cosines, sines, columns)
    plain = rotate_reference(states, turning, count=count)
    truth = rotate_reference(states.double(), Turns(*doubled(tuple(turning))), count=count)
    found = states.clone()
    rotate_(found, turning, count=count)
    assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])
    assert torch.equal(found[:live, columns:], states[:live, columns:]), "values stay"
    assert found[live:].isnan().all()
    if live > 1:
        assert not torch.equal(found[1, :columns], states[1, :columns])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("live", "width"), [(1, 16), (21, 300)])
def test_gate_agrees_with_the_twin(live: int, width: int, activation: str, dtype: torch.dtype, device: str) -> None:
    values = numbers(live + SPARE, 2 * width, dtype=dtype, device=device, live=live)
    count = torch.tensor([live], dtype=torch.int32, device=device)
    found, plain = (way(values, activation=activation, count=count) for way in (gated, gated_reference))
    truth = gated_reference(values.double(), activation=activation, count=count)
    assert_as_exact_as_plain_torch(found[:live], plain[:live], truth[:live])


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="is not one of: gelu, gelu_tanh, silu"):
        gated(torch.zeros(1, 4), activation="relu")
