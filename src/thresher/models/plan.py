"""The plan of a model: what its gates, the dial and its head make of a forward pass."""

import math
from typing import Any

from thresher.core.plan import PruningPlan
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import GATES_NAME, encoder_shape, gates_of
from thresher.models.gating import Gates
from thresher.models.heads import head_of


def plan_of(model: Any, *, dial: float = 1.0) -> PruningPlan:
    """What is dropped where; nothing for a model without gates, or with gates that are off.

    The dial scales thresholds. Infinite ones, of layers that leave only protected tokens, stay, but at dial 0.
    """
    if isinstance(dial, bool) or not isinstance(dial, int | float) or not _is_finite(dial) or dial < 0:
        raise ConfigError(f"dial = {dial!r} must be a number of at least 0 (0 = dense, 1 = as trained)")
    reads = head_of(model).reads
    gates = getattr(model.base_model, GATES_NAME, None)
    if not isinstance(gates, Gates) or gates_of(model).mode == "off":
        return PruningPlan.dense(encoder_shape(model).layers, reads=reads)
    gates.require_thresholds()
    config = gates.config
    if reads == "first" and "first" not in config.protect:
        raise ModelError(
            "the head reads the first token, so the engine needs it protected; retrain with protect = first"
        )
    return PruningPlan(
        thresholds=tuple(0.0 if dial == 0 else float(value) * dial for value in gates.thresholds.tolist()),
        score=config.score,
        scale=config.scale,
        protect=config.protect,
        separator_id=config.separator_id,
        reads=reads,
        dial=float(dial),
    )


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False
