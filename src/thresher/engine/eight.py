"""Numbers in eight bits of floating point (e4m3): three bits of mantissa, from 2^-9 up to 448. In plain torch.

A value is divided by what one of its units is worth before it is rounded (or multiplied by `units`, how many of them
one is). Three bits are as exact at 1 as at 400, so a unit only has to keep values in range: those that `thresher
quantize` finds for int8, per channel, put the usual largest one at 127, which leaves room for one 3.5 times as large.
Static ones need no pass over a row before it is stored: a norm, a product's end and attention, which has a row's heads
in different programs, each round what they just made, and a text's numbers do not depend on those around it.
"""

import torch
from torch import Tensor

EIGHT = torch.float8_e4m3fn
MOST = 448.0
SMALLEST = 1e-12  # of a column's largest weight


def rounded(values: Tensor, units: Tensor) -> Tensor:
    """values * units as e4m3 holds it, in the wider of their dtypes. What is too large becomes the largest number, as
    GPUs do it: torch's own conversion would make it not a number."""
    given = values * units
    return given.float().clamp(-MOST, MOST).to(EIGHT).to(given.dtype)


def eight_weight(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) in e4m3, and what one unit of a sum is worth in each output channel, (out,) float32. scale: (in,) or
    one number, what a unit of the input is worth."""
    scaled = weight.float() * scale
    worth = scaled.abs().amax(dim=1).clamp(min=SMALLEST) / MOST
    return (scaled / worth[:, None]).to(EIGHT), worth
