"""Rounding with gradients: whole numbers as int8 has them, and what a product makes of them."""

import pytest
import torch
from torch import nn

from thresher.core.rounding import Site, int8_products, rounded, rounded_weight


def test_whole_numbers_inside_the_range_and_gradients_where_nothing_is_cut() -> None:
    values = torch.tensor([-130.0, -127.0, -0.4, 0.5, 1.5, 126.6, 127.2], requires_grad=True)
    found = rounded(values)
    assert found.tolist() == [-127.0, -127.0, -0.0, 0.0, 2.0, 127.0, 127.0]
    (found * torch.arange(1.0, 8.0)).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0]


def test_a_range_of_its_own_in_tensors() -> None:
    found = rounded(torch.tensor([-40.0, 3.2, 300.0]), torch.tensor(-17.0), torch.tensor(238.0))
    assert found.tolist() == [-17.0, 3.0, 238.0]


def test_every_output_channel_has_its_own_worth() -> None:
    weight = torch.tensor([[12.7, -1.0], [0.0, 0.0]])
    whole, worth = rounded_weight(weight)
    assert whole.tolist() == [[127.0, -10.0], [0.0, 0.0]]
    assert worth.tolist() == pytest.approx([0.1, 1e-12 / 127])


def drawn(bias: bool = True) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    linear, size = nn.Linear(24, 10, bias=bias), torch.logspace(-1, 1, 24)
    with torch.no_grad():
        linear.weight /= size
    return linear, torch.randn(5, 3, 24) * size, size * (4 / 127)


@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_near_the_plain_one_and_its_gradients_are_too(bias: bool) -> None:
    """The rounding costs a percent or so; a wrong fold of the scales would cost everything."""
    linear, values, scale = drawn(bias)
    values.requires_grad_(True)
    leaves = [values, *linear.parameters()]
    wanted, direction = linear(values), torch.randn(5, 3, 10)
    plain = torch.autograd.grad((wanted * direction).sum(), leaves)
    (found,) = int8_products([linear], values, Site(scale))
    ours = torch.autograd.grad((found * direction).sum(), leaves)
    for exact, lossy in ((wanted, found), *zip(plain, ours, strict=True)):
        assert float((exact - lossy).detach().norm() / exact.detach().norm()) < 0.03
    assert not torch.equal(wanted, found)


def test_one_number_as_the_scale_is_not_folded_into_the_weights() -> None:
    """With weights on their own grid, nothing but the input is rounded."""
    linear = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[127.0, 3.0]]))
    site = Site(torch.tensor(0.5), torch.tensor(-10.0), torch.tensor(245.0))
    (found,) = int8_products([linear], torch.tensor([[1.2, -8.0]]), site)
    assert found.tolist() == [[127.0 * 1.0 + 3.0 * -5.0]]


def test_factors_are_exact_in_bf16() -> None:
    linear, values, scale = drawn()
    (exact,) = int8_products([linear], values, Site(scale))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = int8_products([linear], values, Site(scale))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.01, atol=0.01 * float(exact.detach().abs().max()))
