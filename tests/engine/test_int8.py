"""Int8 products against readable twins of the same quantization, and int8 engines against fp32."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.makers import cpu, engine_with, reference
from tests.engine.test_engine import SCORES, sequences
from tests.engine.test_find_scales import scales_of
from tests.models.families import FAMILIES, LAYERS, pruned_model, ragged, tiny_model
from thresher.core.layer import LayerSpec
from thresher.core.plan import PruningPlan
from thresher.engine.backends import linear
from thresher.engine.backends.feedforward import StaticFeedForward, gelu_zero
from thresher.engine.backends.linear import DynamicInt8, StaticInt8, check_int8
from thresher.engine.backends.reference import Reference
from thresher.engine.weights import Affine, Layer, LayerScales, Norm, Weights
from thresher.errors import ConfigError, ModelError

SHAPES = [(1, 64, 48), (7, 33, 17), (3, 128, 1), (1023, 96, 40)]  # rows, in, out
LONG = (11, 1, 7, 3, 16, 23, 40, 9)

try:
    check_int8()
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)


# ---- twins: whole numbers as the engine rounds them (in float32), all else in float64


def whole(values: Tensor) -> Tensor:
    return values.float().round().clamp(-127, 127).double()


def weight_twin(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers (out, in) and what one of them is worth (out, 1)."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    return whole(weight / scale), scale.double()


def dynamic_twin(values: Tensor, affine: Affine) -> Tensor:
    scale = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    weights, worth = weight_twin(affine.weight)
    return whole(values / scale) @ weights.T * scale.double() * worth.T + affine.bias.double()


def static_twin(values: Tensor, affine: Affine, scales: Tensor) -> Tensor:
    weights, worth = weight_twin(affine.weight * scales)
    return whole(values * (1 / scales)) @ weights.T * worth.T + affine.bias.double()


def gelu_bytes_twin(values: Tensor, affine: Affine, scales: Tensor, out_scale: float) -> Tensor:
    """The widened states as the fused product gives them: GELU in float64, then bytes around its zero."""
    widened = F.gelu(static_twin(values, affine, scales))
    return (widened / out_scale).round().add(gelu_zero(out_scale)).clamp(0, 255)


def drawn(rows: int, width: int, out: int) -> tuple[Tensor, Affine, Tensor]:
    """Values with channels of very different size, a matrix, and scales that clip the rare extremes."""
    generator = torch.Generator().manual_seed(rows + width)
    size = torch.logspace(-1, 1, width)
    values = torch.randn(rows, width, generator=generator) * size
    affine = Affine(torch.randn(out, width, generator=generator) / size, torch.randn(out, generator=generator))
    return values, affine, size * (2.5 / 127)


@pytest.mark.parametrize(("rows", "width", "out"), SHAPES)
def test_dynamic_products_are_those_of_the_twin(rows: int, width: int, out: int) -> None:
    values, affine, _ = drawn(rows, width, out)
    expected = dynamic_twin(values, affine)
    torch.testing.assert_close(DynamicInt8(affine)(values).double(), expected, rtol=1e-5, atol=1e-5 * expected.std())


@pytest.mark.parametrize(("rows", "width", "out"), SHAPES)
def test_static_products_are_those_of_the_twin(rows: int, width: int, out: int) -> None:
    values, affine, scales = drawn(rows, width, out)
    expected = static_twin(values, affine, scales)
    found = StaticInt8(affine, scales)(values.clone())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * expected.std())


def test_a_row_of_zeros_gives_the_bias() -> None:
    _, affine, scales = drawn(2, 64, 48)
    zeros = torch.zeros(2, 64)
    for product in (DynamicInt8(affine), StaticInt8(affine, scales)):
        torch.testing.assert_close(product(zeros.clone()), affine.bias.expand(2, -1))


def feed_forward(width: int, inner: int) -> tuple[Layer, LayerScales, Tensor]:
    values, widen, scales = drawn(200, width, inner)
    _, narrow, _ = drawn(inner, inner, width)
    norm = Norm(torch.ones(width), torch.zeros(width), 1e-12)
    nothing = Affine(torch.zeros(1, width), torch.zeros(1))
    spec = LayerSpec(heads=1, width=width, ffn_width=inner, activation=F.gelu)
    layer = Layer(spec, nothing, nothing, norm, widen, narrow, norm)
    top = float(F.gelu(F.linear(values, widen.weight, widen.bias)).max())
    return layer, LayerScales(scales, scales, scales, torch.tensor(top / 240)), values


def test_gelu_inside_the_product_gives_the_bytes_of_gelu_after_it() -> None:
    """Float rounding moves a value across a byte's edge now and then: by one byte, in less than one of 500 places."""
    layer, scales, values = feed_forward(64, 96)
    fused = StaticFeedForward(layer, scales)
    widen = fused.widen
    found = widen.matrix.gelu_product(
        widen.quantized(values.clone()), 1.0, widen.bias, out_scale=fused.scale, out_zero=fused.zero
    )
    expected = gelu_bytes_twin(values, layer.ffn_in, scales.ffn_in, fused.scale)
    difference = (found.double() - expected).abs()
    assert fused.fused and difference.max() <= 1
    assert (difference > 0).double().mean() < 1 / 500
    assert expected.min() < fused.zero, "bytes below zero take part"


def test_the_whole_feed_forward_is_that_of_its_unfused_twin() -> None:
    layer, scales, values = feed_forward(64, 96)
    fused = StaticFeedForward(layer, scales)
    weights, worth = weight_twin(layer.ffn_out.weight)
    bytes_in = gelu_bytes_twin(values, layer.ffn_in, scales.ffn_in, fused.scale) - fused.zero
    expected = bytes_in @ weights.T * worth.T * fused.scale + layer.ffn_out.bias.double()
    found = fused(values.clone()).double()
    one_byte = float((weights.abs() * worth).max()) * fused.scale
    assert (found - expected).abs().max() <= 2 * one_byte
    assert (found - expected).abs().mean() < 0.02 * one_byte


def test_a_processor_whose_products_saturate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.Int8Matrix, "product", lambda *args, **options: torch.full((4, 16), 32767.0))
    with pytest.raises(ConfigError, match="int8 products saturate .* use fp32 or bf16"):
        check_int8()
    with pytest.raises(ConfigError, match="saturate"):
        engine_with(tiny_model("bert"), cpu("int8"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="oneDNN"):
        check_int8()


# ---- whole models


class Simulated(Reference):
    """Plain torch in float64 in which every product of a layer loses what int8 loses, by the twins above.

    ALBERT's last pass has the scales of the others here, and its own in the engine.
    """

    def __init__(self, weights: Weights, plan: PruningPlan, *, scales: list[LayerScales]) -> None:
        super().__init__(weights, plan, dtype=torch.float64)
        self.scales = scales  # none: dynamic
        self.sites: dict[int, Tensor | None] = {}
        for index, layer in enumerate(self.weights.layers):
            for site in ("qkv", "attention_output", "ffn_in", "ffn_out"):
                scales = getattr(self.scales[index], site) if self.scales else None
                self.sites.setdefault(id(getattr(layer, site)), scales)

    def linear(self, values: Tensor, affine: Affine) -> Tensor:
        if id(affine) not in self.sites:
            return super().linear(values, affine)
        scales, low = self.sites[id(affine)], Affine(affine.weight.float(), affine.bias.float())
        if scales is None:
            return dynamic_twin(values.float(), low)
        if scales.dim():
            return static_twin(values.float(), low, scales)
        weights, worth = weight_twin(low.weight)
        zero = gelu_zero(float(scales))
        codes = (values / scales).round().clamp(-zero, 255 - zero)
        return codes @ weights.T * worth.T * float(scales) + affine.bias


@pytest.mark.parametrize("dtype", ["int8", "int8-static"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_loses_what_int8_loses_and_no_more(name: str, dtype: str) -> None:
    """Values under the same decisions (nothing pruned), against float64: at most twice the error of the simulation.

    How much that is on random models of width 32, 4 layers: a tenth of the logits' spread. Trained models of real
    width lose less; `thresher quantize` measures it for each run.
    """
    model = pruned_model(name, (0.0,) * LAYERS)
    inputs = sequences(ragged(model, LONG))
    scales = scales_of(model, LONG) if dtype == "int8-static" else []
    exact = engine_with(model, reference(torch.float64)).compute(inputs).outputs
    simulated = engine_with(model, partial(Simulated, scales=scales)).compute(inputs).outputs
    found = engine_with(model, cpu(dtype, scales)).compute(inputs).outputs.double()
    error, bound = (found - exact).abs(), (simulated - exact).abs()
    assert error.max() <= 2 * bound.max() + 1e-4
    assert error.mean() <= 2 * bound.mean() + 1e-4
    assert error.mean() < 0.1 * exact.std()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", ["int8", "int8-static"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_text_alone_is_decided_as_in_a_batch(name: str, dtype: str, score: str) -> None:
    """What is kept is equal; values differ by float32's rounding, and by what one byte more or less makes of it."""
    model = pruned_model(name, score=score)
    inputs = sequences(ragged(model, LONG))
    engine = engine_with(model, cpu(dtype, scales_of(model, LONG) if dtype == "int8-static" else []))
    together = engine.compute(inputs)
    assert int(together.kept[:, 1].sum()) < sum(LONG)
    for row, ids in enumerate(inputs):
        alone = engine.compute([ids])
        assert torch.equal(alone.kept[0], together.kept[row])
        assert int(alone.outputs.argmax()) == int(together.outputs[row].argmax())
        torch.testing.assert_close(alone.outputs[0], together.outputs[row], atol=2e-2, rtol=2e-2)


def test_scales_of_another_model_are_refused() -> None:
    model = pruned_model("bert")
    scales = scales_of(model, LONG)
    narrow = [LayerScales(s.qkv[:-1], s.attention_output[:-1], s.ffn_in[:-1], s.ffn_out) for s in scales]
    for wrong in (scales[:-1], narrow):
        with pytest.raises(ModelError, match="int8 scales are not those of this model"):
            engine_with(model, cpu("int8-static", wrong))
