"""Static int8 scales: what they cover, what they cut, and what they are looked up from."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.makers import cpu, engine_with
from tests.engine.test_engine import SCORES, sequences
from tests.models.families import LAYERS, LENGTHS, WIDTH, pruned_model, ragged
from thresher.engine.backends.feedforward import StaticFeedForward, gelu_zero
from thresher.engine.find_scales import Observed, Observing, channel_scales, find_scales, one_scale
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import Affine, LayerScales, read_weights
from thresher.errors import DataError
from thresher.models.plan import plan_of


def observed(values: Tensor, weight: Tensor | None = None) -> Observed:
    weight = torch.ones(1, values.shape[1]) if weight is None else weight
    site = Observed(Affine(weight, torch.zeros(len(weight))))
    for rows in values.split(16):  # so few at a time that all are looked at
        site(rows)
    return site


def squared_error(values: Tensor, scale: float, low: int, high: int) -> float:
    """Plainly: every value becomes the nearest multiple of the scale between low and high."""
    back = [min(max(round(value / scale), low), high) * scale for value in values.flatten().tolist()]
    return sum((a - b) ** 2 for a, b in zip(values.flatten().tolist(), back, strict=True)) / len(back)


def scales_of(model: Any, lengths: tuple[int, ...] = LENGTHS) -> list[LayerScales]:
    inputs = sequences(ragged(model, lengths))
    return find_scales(model, [(ids, None) for ids in inputs])


def test_values_on_a_grid_get_exactly_the_grids_step() -> None:
    grid = torch.arange(-127.0, 128.0)[:, None]
    assert channel_scales(observed(grid * 0.5)).tolist() == pytest.approx([0.5])
    assert float(one_scale(observed(grid * 0.5), gelu=False)) == pytest.approx(0.5)


def test_every_channel_is_covered_where_no_value_sticks_out() -> None:
    """Channels a thousand times as large as others, and weights that differ as much, share one range of bytes."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([0.01, 1.0, 10.0, 0.3])
    values = (torch.rand(500, 4, generator=generator) * 2 - 1) * size
    weight = torch.rand(6, 4, generator=generator) / size
    reach = 127 * channel_scales(observed(values, weight))
    assert bool((reach > 0.97 * values.abs().amax(dim=0)).all())


def test_large_values_are_shared_out_between_inputs_and_weights() -> None:
    """A channel's scale grows with the root of its size, so that its folded weights grow with the other root."""
    values = torch.arange(-127.0, 128.0)[:, None] * torch.tensor([1.0, 100.0])
    small, large = channel_scales(observed(values)).tolist()
    assert large / small == pytest.approx(10.0)
    assert 127 * large >= 0.99 * 12700


def test_a_lone_outlier_is_cut_where_that_makes_the_smaller_squared_error() -> None:
    values = torch.cat([torch.linspace(-1, 1, 60_001), torch.tensor([2.0])])[:, None]
    scale = float(one_scale(observed(values), gelu=False))
    covering = 2.0 / 127
    assert scale < 0.8 * covering
    assert squared_error(values, scale, -127, 127) < squared_error(values, covering, -127, 127)
    even = torch.linspace(-2, 2, 2001)[:, None]
    assert float(one_scale(observed(even), gelu=False)) == pytest.approx(covering, rel=0.03)


@pytest.mark.parametrize("top", [0.05, 0.3, 1.0, 4.0, 30.0])
def test_the_step_after_gelu_is_about_the_best_there_is(top: float) -> None:
    """Its zero is not in the middle; small ranges need as many bytes below it as above."""
    values = F.gelu(torch.linspace(-6, top, 1500))[:, None]

    def error(scale: float) -> float:
        zero = gelu_zero(scale)
        return squared_error(values, scale, -zero, 255 - zero)

    best = min(error((0.2 + top) / 255 * 1.03**power) for power in range(-30, 10))
    assert error(float(one_scale(observed(values), gelu=True))) <= 1.1 * best


def test_after_gelu_too_a_lone_outlier_is_cut() -> None:
    """Values on the grid of 0.01 from -0.17 to 2.37, and one that would take a scale of 0.011."""
    grid = torch.arange(-17.0, 238.0).repeat(100) * 0.01
    values = torch.cat([grid, torch.tensor([2.37 / 0.9])])[:, None]
    assert float(one_scale(observed(values), gelu=True)) == pytest.approx(0.01)


def test_rows_are_a_sample_and_the_largest_values_are_of_all() -> None:
    site = Observed(Affine(torch.ones(1, 1), torch.zeros(1)))
    values = torch.zeros(1000, 1)
    values[501] = -7.0
    site(values)
    assert site.largest.tolist() == [7.0]
    assert len(site.rows[0]) < 64


def test_a_channel_that_is_always_zero_has_a_step() -> None:
    scales = channel_scales(observed(torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.tensor([[0.0, 2.0]])))
    assert bool(scales.isfinite().all()) and bool((scales > 0).all())


def test_every_layer_has_scales_of_its_own() -> None:
    scales = scales_of(pruned_model("bert"))
    assert len(scales) == LAYERS
    for layer in scales:
        assert layer.qkv.shape == layer.attention_output.shape == layer.ffn_in.shape == (WIDTH,)
        assert layer.ffn_out.shape == ()
    assert len({float(layer.ffn_out) for layer in scales}) == LAYERS


def test_passes_that_share_a_layer_share_its_scales() -> None:
    """ALBERT: what the one layer meets in all of its passes. The last keys and values are a product of their own."""
    scales = scales_of(pruned_model("albert"))
    assert len(scales) == LAYERS
    for site in ("attention_output", "ffn_in", "ffn_out"):
        assert all(torch.equal(getattr(layer, site), getattr(scales[0], site)) for layer in scales)
    assert all(torch.equal(layer.qkv, scales[0].qkv) for layer in scales[:-1])
    assert not torch.equal(scales[-1].qkv, scales[0].qkv)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_dropped_tokens_do_not_count(name: str, score: str) -> None:
    """All but the first token go in layer 2; what follows is calibrated on first tokens alone."""
    model = pruned_model(name, (0.5, math.inf, 0.5, 0.5), score=score)
    inputs = sequences(ragged(model))
    observing = Observing(read_weights(model), plan_of(model))
    PackedExecutor(observing).compute(inputs)
    seen = {key: sum(map(len, site.rows)) for key, site in observing.sites.items()}
    assert seen[0, "qkv"] == sum(LENGTHS)
    if name == "bert":
        assert seen[1, "attention_output"] == seen[2, "qkv"] == seen[3, "qkv"] == seen[3, "ffn_out"] == len(LENGTHS)
    else:
        assert seen[2, "qkv"] == 2 * len(LENGTHS), "two passes in which first tokens are alone"
    for index in range(LAYERS):
        for value in vars(observing.found(index)).values():
            assert bool((value > 0).all()) and bool(value.isfinite().all())


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_an_activation_that_is_not_gelu_is_quantized_around_the_middle(activation: str) -> None:
    model = pruned_model("bert", (0.0,) * LAYERS, changes={"hidden_act": activation})
    inputs = sequences(ragged(model))
    scales = scales_of(model)
    layer = read_weights(model).layers[0]
    assert not StaticFeedForward(layer, scales[0]).fused
    exact = engine_with(model, cpu()).compute(inputs).outputs
    static = engine_with(model, cpu("int8-static", scales)).compute(inputs).outputs
    assert (static - exact).abs().mean() < 0.1 * exact.std()


def test_no_texts_is_a_clear_error() -> None:
    model = pruned_model("bert")
    with pytest.raises(DataError, match="0 texts to calibrate int8 with; give at least one"):
        find_scales(model, [])
