"""What becomes of a product's sums before they are stored: activations, gates, and turns by positions."""
# mypy: disable-error-code="no-untyped-def"

import torch.nn.functional as F
from torch import Tensor

from thresher.engine.kernels.toolchain import jit, quotient, tl

ACTIVATIONS = ("none", "gelu", "gelu_tanh", "silu")


def activated_reference(values: Tensor, activation: str) -> Tensor:
    """The twin of `activated`, in plain torch."""
    if activation == "none":
        return values
    if activation == "silu":
        return F.silu(values)
    return F.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated_reference(values: Tensor, activation: str) -> Tensor:
    """activation(first half of the columns) times the second half, in plain torch."""
    states, gate = values.chunk(2, dim=-1)
    return activated_reference(states, activation) * gate


@jit
def gelu(values, EXACT: tl.constexpr):
    """x times the normal distribution function; unless exact, with the sigmoid of a fitted odd polynomial for it, at
    most 3.1e-6 away: the error function would take longer than all else that follows the sums.
    """
    if EXACT:
        scaled = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    else:
        square = values * values
        power = -3.2106336e-06 * square + 8.7913970e-05  # of two: the polynomial times -log2(e)
        power = power * square + 3.6202816e-04
        power = power * square - 1.0522995e-01
        power = power * square - 2.3020438
        scaled = quotient(values, 1.0 + tl.exp2(values * power))
    return scaled


@jit
def activated(values, ACTIVATION: tl.constexpr, EXACT: tl.constexpr):
    """One of ACTIVATIONS of float32 numbers; exact: see gelu."""
    if ACTIVATION == "gelu":
        values = gelu(values, EXACT)
    elif ACTIVATION == "gelu_tanh":  # tanh by way of the sigmoid
        values = quotient(values, 1.0 + tl.exp2(-2.302208198 * (values + 0.044715 * values * values * values)))
    elif ACTIVATION == "silu":
        values = quotient(values, 1.0 + tl.exp2(-1.4426950409 * values))
    return values


@jit
def halves(values):
    """The left and the right half of a tile's columns. Products hold both in the same thread, so nothing moves."""
    both = tl.reshape(values, (values.shape[0], 2, values.shape[1] // 2))
    return tl.split(tl.permute(both, (0, 2, 1)))


@jit
def turned(values, at, first_column, cosines, sines, TURNED: tl.constexpr, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile whose COLUMNS from `first_column` on are whole heads; the heads before column TURNED are turned by
    their rows' positions `at`. cosines, sines: (positions, HALF)."""
    HEADS: tl.constexpr = COLUMNS // (2 * HALF)
    if first_column < TURNED:
        low, high = tl.split(tl.permute(tl.reshape(values, (values.shape[0], HEADS, 2, HALF)), (0, 1, 3, 2)))
        angle = at[:, None] * HALF + tl.arange(0, HALF)[None, :]
        cosine = tl.load(cosines + angle)[:, None, :]
        sine = tl.load(sines + angle)[:, None, :]
        if TURNED % COLUMNS != 0:  # the last tile has heads that stay
            stays = (first_column + 2 * HALF * tl.arange(0, HEADS) >= TURNED)[None, :, None]
            cosine = tl.where(stays, 1.0, cosine)
            sine = tl.where(stays, 0.0, sine)
        both = tl.join(low * cosine - high * sine, high * cosine + low * sine)
        values = tl.reshape(tl.permute(both, (0, 1, 3, 2)), (values.shape[0], COLUMNS))
    return values
