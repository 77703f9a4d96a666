"""Backends to be made for a model: tests say which, and give the model later."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thresher.engine.backends.base import Backend
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.reference import Reference
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import LayerScales, read_weights
from thresher.models.plan import plan_of

Make = Callable[..., Backend]


def reference(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Make:
    return lambda weights, plan: Reference(weights, plan, dtype=dtype, device=device)


def cpu(dtype: str = "fp32", scales: Sequence[LayerScales] = ()) -> Make:
    return lambda weights, plan: Cpu(weights, plan, dtype=dtype, scales=scales)


def engine_with(model: Any, make: Make, dial: float = 1.0) -> PackedExecutor:
    return PackedExecutor(make(read_weights(model), plan_of(model, dial=dial)))
