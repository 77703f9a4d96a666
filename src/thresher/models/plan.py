"""The plan of a model: what its gates, the dial and its head make of a forward pass."""

import math
from typing import Any

from thresher.core.plan import PruningPlan
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import GATES_NAME, encoder_shape, gates_of
from thresher.models.gating import Gates
from thresher.models.heads import head_of
from thresher.text import shown


def plan_of(model: Any, *, dial: float = 1.0) -> PruningPlan:
    """What is dropped where; nothing for a model without gates, or with gates that are off.

    The dial scales thresholds. Infinite ones, of layers that leave only protected tokens, stay, but at dial 0.
    """
    dial = check_dial(dial)
    reads = head_of(model).reads
    gates = getattr(model.base_model, GATES_NAME, None)
    if not isinstance(gates, Gates) or gates_of(model).mode == "off":
        return PruningPlan.dense(encoder_shape(model).layers, reads=reads)
    gates.require_thresholds()
    config = gates.config
    if config.protect == ("none",):
        raise ModelError(
            "nothing is protected, and the engine must not lose all tokens of a text; retrain with protect = first"
        )
    if reads == "first" and "first" not in config.protect:
        raise ModelError(
            "the head reads the first token, so the engine needs it protected; retrain with protect = first"
        )
    return PruningPlan(
        thresholds=tuple(0.0 if dial == 0 else float(value) * dial for value in gates.thresholds.tolist()),
        score=config.score,
        scale=config.scale,
        score_queries=config.score_queries,
        protect=config.protect,
        separator_id=config.separator_id,
        reads=reads,
        dial=float(dial),
        rejoin=config.rejoined,
    )


def check_dial(dial: Any) -> float:
    """A number from 0 on: 0 is dense, 1 as trained."""
    try:
        value = math.nan if isinstance(dial, bool | str | bytes) else float(dial)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # none, a huge one, a tensor of several
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"dial = {shown(dial)} must be a number from 0 on; 0 is dense and 1 as trained")
    return value
