"""The scales of static int8 beside a model's gates: with them its pruned layers compute as the engine does in int8."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from thresher.core.rounding import Site, int8_products
from thresher.errors import ModelError

SITES = ("qkv", "attention_output", "ffn_in", "ffn_out")
# The site's name, the modules that read its input, and this input (..., in) -> (..., out) of each.
Products = Callable[[str, Sequence[nn.Linear], Tensor], list[Tensor]]


def plain_products(site: str, linears: Sequence[nn.Linear], values: Tensor) -> list[Tensor]:
    """As the modules compute them."""
    return [linear(values) for linear in linears]


class Rounding(nn.Module):
    """What 1 is worth in the int8 input of every product of every layer pass, fixed.

    It is part of the gates' state, so that it follows the model to a device and into a saved training state; gates that
    are off use the stock layers, which round nothing.
    """

    low: Tensor  # (layers,) of the inputs of ffn_out, whose zero is not always in the middle
    high: Tensor

    def __init__(self, scales: Sequence[Mapping[str, Tensor]], *, low: Sequence[float], high: Sequence[float]) -> None:
        """scales: of each layer pass by SITES, (in,) each, and one number for ffn_out."""
        super().__init__()
        for site in SITES:
            self.register_buffer(site, torch.stack([layer[site].detach().float() for layer in scales]))
        self.register_buffer("low", torch.tensor(list(low)))
        self.register_buffer("high", torch.tensor(list(high)))

    def check(self, *, layers: int, width: int) -> None:
        """Scales of another model must not get as far as a product."""
        found = (len(self.low), self.get_buffer("qkv").shape[-1])
        if found != (layers, width):
            raise ModelError(
                f"int8 scales are for {found[0]} layers of width {found[1]}, and the model has {layers} of width "
                f"{width}; quantize the run again"
            )

    def products_of(self, layer: int) -> Products:
        """Those of one layer pass."""

        def products(site: str, linears: Sequence[nn.Linear], values: Tensor) -> list[Tensor]:
            scale = self.get_buffer(site)[layer]
            one = Site(scale) if site != "ffn_out" else Site(scale, self.low[layer], self.high[layer])
            return int8_products(linears, values, one)

        return products
