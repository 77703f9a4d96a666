"""Where a run stands, and which data it is a run on: what an interrupted run must know to go on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from thresher.config import PruneConfig, TrainConfig
from thresher.tasks.encode import EncodedSet

FREE_TO_CHANGE = ("record", "save_seconds")  # between an interruption and its resumption


@dataclass
class TrainingState:
    """Where training stands, as saved in every snapshot: the stage and step to go on from, and what was seen so far.

    `best_score` is of the current stage's best checkpoint on the selection split; `history` one row per evaluation;
    `passed_over` counts the stage's steps whose gradients were not finite.
    """

    stage: str = "finetune"
    step: int = 0
    best_score: float | None = None
    best_fits: bool = False
    passed_over: int = 0
    dense: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def identity_of(
    config: TrainConfig, prune: PruneConfig, *, model: list[Any], finetune: bool, rows: Iterable[EncodedSet]
) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the run that was interrupted."""
    settings = {name: value for name, value in config.to_dict().items() if name not in FREE_TO_CHANGE}
    about = {"prune settings": prune.to_dict(), "model": model, "finetune": finetune, "data": _digest(rows)}
    return {**settings, **about}


def changed_settings(about: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """Names of what is not as the snapshot tells `about` it."""
    before = about.get("identity", {})
    return sorted(name for name, value in identity.items() if before.get(name) != value)


def _digest(sets: Iterable[EncodedSet]) -> str:
    """A fingerprint of the rows."""
    digest = hashlib.sha256()
    for data in sets:
        for row in data.rows:
            digest.update(repr((row.input_ids, row.token_type_ids, row.label)).encode())
    return digest.hexdigest()
