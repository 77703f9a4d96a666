"""What the engine asks of whatever computes: packed texts in, outputs and kept counts out, on any device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from thresher.core.cost import EncoderShape
from thresher.core.plan import PruningPlan
from thresher.engine.inputs import Tables
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens

Ids = Sequence[Sequence[int]] | Tokens
Types = Sequence[Sequence[int] | None] | None  # missing token types are zeros
TYPICAL = 64  # tokens of a text
SLICE_TOKENS = 1024  # of a batch on a CPU, where more tokens are not faster


@dataclass(frozen=True)
class Output:
    """In the order of the input. outputs: (texts, outputs of the head), float32, or where the head reads tokens (tokens
    of all texts end to end, outputs), each in its place whether it was dropped or not; kept: (texts, layers) tokens
    that each layer passed on.

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
    in_flight: int  # batches that may be launched before the first of them is finished
    on_cores: bool  # whether it computes on the processor's own cores, and so no faster than they tokenize
    by_length: bool  # whether texts of similar length should share a batch, or neighbours may
    window: int  # texts of a live stream that are read before the first of them is answered, where nobody says

    @property
    def token_budget(self) -> int:
        """Tokens of a batch that keep the device busy and fit its memory."""

    @property
    def stalls(self) -> int:
        """Batches so far that waited for what had to be made for their size: their time is not that of the next."""

    def pack(self, input_ids: Ids, token_types: Types = None) -> Any:
        """Token sequences of any lengths as one batch, ready to run: lists, or flat arrays with their own types."""

    def launch(self, packed: Any) -> Any:
        """Begin to compute a packed batch, without waiting for the device; what is given back is for `finish`."""

    def finish(self, begun: Any) -> Output:
        """The outputs of what was launched."""

    def run(self, packed: Any) -> Output:
        """Launch and finish."""

    def with_plan(self, plan: PruningPlan) -> "Executor":
        """The same weights with another plan."""

    def check_alive(self) -> None:
        """After a failure: a ModelError where the device will never answer again, so that no text is to blame."""

    def compute(self, input_ids: Ids, token_types: Types = None) -> Output:
        """Pack and run."""

    def warm_up(self, batches: Sequence[Tokens]) -> None:
        """Prepare for batches of such sizes, so that the first real one does not wait."""

    def typical_sizes(self, longest: int) -> list[tuple[int, int]]:
        """(texts, tokens of each) of batches that a server should warm up with, those that are needed most first;
        `longest`: tokens of its longest text."""

    def fitting(self, tokens: int) -> int:
        """Of batches of about so many tokens, how many leave no room unused; not more, unless there is no such size."""

    def catch_up(self) -> None:
        """While nobody waits: make a part of what batches of late had to do without, if there is any."""

    def describe(self) -> dict[str, Any]:
        """What is computed, and how."""


class AnySize:
    """Of executors to which all sizes of batches are the same: nothing to prepare, and nothing to catch up on."""

    stalls = 0

    def typical_sizes(self, longest: int) -> list[tuple[int, int]]:
        length = min(TYPICAL, longest)
        return [(max(1, SLICE_TOKENS // length), length)]

    def fitting(self, tokens: int) -> int:
        return tokens

    def catch_up(self) -> None:
        pass


def description(executor: Executor, *, backend: str) -> dict[str, Any]:
    """What every executor says of itself."""
    plan = executor.plan
    return {
        "backend": backend,
        "device": executor.device,
        **({"threads": torch.get_num_threads()} if executor.device == "cpu" else {}),
        "dtype": executor.dtype,
        "score": plan.score,
        "score_queries": plan.score_queries,
        "thresholds": [value if math.isfinite(value) else str(value) for value in plan.thresholds],
        "dial": plan.dial,
        "reads": plan.reads,
        "layers": executor.shape.layers,
        "width": executor.shape.width,
    }


def batch_of(input_ids: Ids, token_types: Types = None) -> Tokens:
    """What is to be packed as flat arrays; every text has tokens."""
    tokens = input_ids if isinstance(input_ids, Tokens) else Tokens.of(input_ids, token_types)
    if not len(tokens) or tokens.lengths.min() == 0:
        raise ModelError("every sequence needs at least one token, and a batch at least one sequence")
    return tokens


def made_up_texts(executor: Executor, sizes: Sequence[tuple[int, int]]) -> list[Tokens]:
    """Batches of these sizes, (texts, tokens of each), to warm up with: any ids do, but texts of one word would keep
    all of their tokens, or none. They end as texts do, with the separator, where that is what stays of a text."""
    found, drawn, tables = [], np.random.default_rng(0), executor.tables
    for texts, length in sizes:
        length = min(length, tables.positions)
        ids = drawn.integers(0, tables.words, texts * length, np.int32)
        if executor.plan.separator_id is not None:
            ids[length - 1 :: length] = executor.plan.separator_id
        starts = np.arange(texts + 1, dtype=np.int64) * length
        found.append(Tokens(ids, None, starts, np.zeros(texts, np.bool_)))
    return found
