"""What a backend computes. The layer loop is in packed.py and the same for all."""

from typing import Protocol

from torch import Tensor

from thresher.core.cost import EncoderShape
from thresher.core.plan import PruningPlan
from thresher.engine.inputs import Tables
from thresher.engine.ragged import Ragged


class Backend(Protocol):
    """Operations on packed tokens, of one model with its plan.

    hidden: (total, width) in the backend's own dtype; scores are float32.
    """

    name: str
    dtype: str
    device: str
    plan: PruningPlan
    shape: EncoderShape
    tables: Tables
    longest_first: bool  # whether sequences of equal length should be neighbours
    core_each: bool  # whether parts of a batch may be computed at the same time, each by one core
    row_step: int  # hidden states have a multiple of this many rows; those after the live ones mean nothing

    def embed(self, input_ids: Ragged, token_types: Tensor | None) -> Tensor:
        """Token ids (total,) to the first layer's input (total, width)."""

    def attend(self, index: int, hidden: Tensor, runs: Ragged, *, scored: bool) -> tuple[Tensor, Tensor | None]:
        """Self-attention inside each run: context (as many rows as hidden) and, if asked, relative scores (total,)."""

    def attend_first(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor:
        """Attention of each run's first token only, in the plan's layer `alone`: (batch, width)."""

    def attend_alone(self, index: int, hidden: Tensor) -> Tensor:
        """Of first tokens that are alone, in later layers: each takes its own value. (rows, width)."""

    def finish(self, index: int, context: Tensor, hidden: Tensor) -> Tensor:
        """The rest of the layer, in the order of its description. All (rows, width)."""

    def convolve(self, index: int, hidden: Tensor, runs: Ragged) -> Tensor | None:
        """What the layer's convolution makes of its input, before anything is dropped; None where there is none."""

    def join(self, index: int, hidden: Tensor, beside: Tensor) -> Tensor:
        """What `finish` gave, and `convolve` for the same rows, put together."""

    def final(self, states: Tensor) -> Tensor:
        """The norm after the last layer, where there is one. (rows, width)."""

    def head(self, hidden: Tensor) -> Tensor:
        """What the head reads (batch, width) to its outputs (batch, outputs), in float32 or better."""
