"""Rotary positions on CPUs: queries and keys turned where they are, in pieces that stay in the cache."""

from torch import Tensor

ROWS = 64  # turned at a time


def rotate_(states: Tensor, cosines: Tensor, sines: Tensor) -> None:
    """`core.places.rotated` in place, computed in float32. states: (rows, heads, head width) in any dtype; cosines,
    sines: (rows, head width), whose halves are alike."""
    half = states.shape[-1] // 2
    for start in range(0, len(states), ROWS):
        rows = slice(start, start + ROWS)
        cosine, sine = cosines[rows, None, :half], sines[rows, None, :half]
        low, high = states[rows].float().chunk(2, dim=-1)
        turned = (low * cosine).addcmul_(high, sine, value=-1)
        states[rows, :, half:] = (high * cosine).addcmul_(low, sine)
        states[rows, :, :half] = turned
