"""Static int8: how large each product's input gets on the task's own texts, and the scales that follow from it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thresher.core.plan import PruningPlan
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.feedforward import FeedForward, gelu_zero, is_plain_gelu
from thresher.engine.backends.linear import Float32
from thresher.engine.packed import PackedExecutor
from thresher.engine.scales import SITES
from thresher.engine.weights import Affine, Layer, LayerScales, Weights, read_weights
from thresher.errors import DataError
from thresher.models.plan import plan_of

ROWS = 32  # looked at per product and batch
CLIPS = torch.linspace(0.3, 1.0, 36).tolist()  # candidate ranges, as shares of the largest value
TINY = 1e-12
GELU_LOWEST = 0.17  # GELU gives nothing below minus this; see gelu_zero

BATCH = 32  # texts

Text = tuple[list[int], list[int] | None]  # token ids, token types


class Observed(Float32):
    """A product in fp32 that remembers its inputs: the largest value of every channel, and some rows."""

    def __init__(self, affine: Affine) -> None:
        super().__init__(affine)
        self.largest = torch.full(self.weight.shape[1:], TINY)
        self.rows: list[Tensor] = []

    def __call__(self, values: Tensor) -> Tensor:
        torch.maximum(self.largest, values.abs().amax(dim=0), out=self.largest)
        self.rows.append(values[:: max(1, len(values) // ROWS)].clone())
        return super().__call__(values)


class Observing(Cpu):
    """The CPU backend in fp32 with observed products, by layer and site.

    Where only first tokens ask, queries are a product of their own; that for keys and values, which sees every token,
    is made later, and stays.
    """

    row_step = 1  # idle rows are not to be observed
    core_each = False  # what was observed is one list

    def __init__(self, weights: Weights, plan: PruningPlan) -> None:
        self.sites: dict[tuple[int, str], Observed] = {}
        self.gelu = False
        super().__init__(weights, plan, dtype="fp32")

    def _linear(self, affine: Affine, index: int, site: str) -> Observed:
        self.sites[index, site] = Observed(affine)
        return self.sites[index, site]

    def _feed_forward(self, layer: Layer, index: int) -> FeedForward:
        self.gelu = is_plain_gelu(layer.spec)
        inner, outer = self._linear(layer.ffn_in, index, "ffn_in"), self._linear(layer.ffn_out, index, "ffn_out")
        return FeedForward(layer.spec, inner, outer)

    def found(self, index: int) -> LayerScales:
        # Where passes share a layer, the first one observed for all.
        made = next(i for i, one in enumerate(self.layers) if one.steps is self.layers[index].steps)
        own = {site: self.sites.get((index, site)) or self.sites[made, site] for site in SITES}
        vectors = {site: channel_scales(own[site]) for site in SITES if site != "ffn_out"}
        return LayerScales(**vectors, ffn_out=one_scale(own["ffn_out"], gelu=self.gelu))


def find_scales(
    model: Any, texts: Sequence[Text], *, on_texts: Callable[[int], None] = lambda count: None
) -> list[LayerScales]:
    """Static int8 scales of every layer of a Hugging Face model, pruned as it prunes, from token sequences.

    A layer observes what reaches it after pruning: dropped tokens do not count.
    """
    if not texts:
        raise DataError("there are 0 texts to calibrate int8 with; give at least one, better a few hundred")
    observing = Observing(read_weights(model), plan_of(model))
    executor = PackedExecutor(observing)
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        executor.compute([ids for ids, _ in batch], [types for _, types in batch])
        on_texts(len(batch))
    return [observing.found(index) for index in range(len(observing.layers))]


def channel_scales(site: Observed) -> Tensor:
    """(in,) scales: a channel's large values are shared out between its inputs and its weights (SmoothQuant)."""
    weights = site.weight.abs().amax(dim=0).clamp(min=TINY)
    spread = (site.largest / weights).sqrt()
    smooth = torch.cat(site.rows) / spread
    top = float((site.largest / spread).max())
    return spread * _best_scale(smooth, [clip * top / 127 for clip in CLIPS], low=-127, high=127)


def one_scale(site: Observed, *, gelu: bool) -> Tensor:
    """() the scale of inputs that an activation made."""
    values, top = torch.cat(site.rows), float(site.largest.max())
    if not gelu:
        return torch.tensor(_best_scale(values, [clip * top / 127 for clip in CLIPS], low=-127, high=127))
    # Bytes for GELU's lowest value and for the largest one together: a share of `top` alone would cut small ranges.
    scales = [(GELU_LOWEST + clip * top) / 254 for clip in CLIPS]
    errors = [_error(values, scale, low=-gelu_zero(scale), high=255 - gelu_zero(scale)) for scale in scales]
    return torch.tensor(scales[errors.index(min(errors))])


def _best_scale(values: Tensor, scales: list[float], *, low: int, high: int) -> float:
    """The scale with the smallest squared error: clipping a few outliers can sharpen all the rest."""
    errors = [_error(values, scale, low=low, high=high) for scale in scales]
    return scales[errors.index(min(errors))]


def _error(values: Tensor, scale: float, *, low: int, high: int) -> float:
    return float((values - (values / scale).round().clamp(low, high) * scale).square().mean())
