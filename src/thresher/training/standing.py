"""Where a run stands, and which data it is a run on: what an interrupted run must know to go on."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from thresher.tasks.encode import EncodedSet


@dataclass
class Standing:
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


def digest_of(*sets: EncodedSet) -> str:
    """A fingerprint of the rows."""
    digest = hashlib.sha256()
    for data in sets:
        for row in data.rows:
            digest.update(repr((row.input_ids, row.token_type_ids, row.label)).encode())
    return digest.hexdigest()
