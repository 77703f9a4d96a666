"""What the engine asks of whatever computes: packed texts in, outputs and kept counts out, on any device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from thresher.core.cost import EncoderShape
from thresher.core.plan import PruningPlan
from thresher.engine.inputs import Tables
from thresher.errors import ModelError

EXECUTED = ("first", "mean")  # what executors give heads to read
Ids = Sequence[Sequence[int]]
Types = Sequence[Sequence[int] | None] | None  # missing token types are zeros


@dataclass(frozen=True)
class Output:
    """In the order of the input. outputs: (texts, outputs of the head), float32; kept: (texts, layers) tokens that each
    layer passed on.

    For a head that reads first tokens, only these are passed on from some layer on, the last at the latest.
    """

    outputs: Tensor
    kept: Tensor


class Executor(Protocol):
    """One model with its plan, on one device. `pack` is work of the host and may run in any thread."""

    plan: PruningPlan
    shape: EncoderShape
    tables: Tables
    dtype: str
    device: str
    token_budget: int  # tokens of a batch that keep the device busy and fit its memory

    def pack(self, input_ids: Ids, token_types: Types = None) -> Any:
        """Token sequences of any lengths as one batch, ready to run."""

    def run(self, packed: Any) -> Output:
        """Compute a packed batch."""

    def compute(self, input_ids: Ids, token_types: Types = None) -> Output:
        """Pack and run."""

    def warm_up(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Prepare for batches of so many texts of so many tokens each, so that the first real one does not wait."""

    def describe(self) -> dict[str, Any]:
        """What is computed, and how."""


def check_reads(plan: PruningPlan) -> None:
    """Refuse a head that no executor has yet, before it is taken for another one."""
    if plan.reads not in EXECUTED:
        raise ModelError(
            f"heads that read {plan.reads} cannot be executed yet; those that read {' or '.join(EXECUTED)} can"
        )


def description(executor: Executor, *, backend: str) -> dict[str, Any]:
    """What every executor says of itself."""
    plan = executor.plan
    return {
        "backend": backend,
        "device": executor.device,
        "dtype": executor.dtype,
        "score": plan.score,
        "thresholds": [value if math.isfinite(value) else str(value) for value in plan.thresholds],
        "dial": plan.dial,
        "reads": plan.reads,
        "layers": executor.shape.layers,
        "width": executor.shape.width,
    }


def made_up_texts(tables: Tables, sizes: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
    """Batches of these sizes, (texts, tokens of each), to warm up with: any ids do."""
    return [[[1 % tables.words] * min(length, tables.positions)] * texts for texts, length in sizes]
