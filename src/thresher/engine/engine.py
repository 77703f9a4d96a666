"""The engine: a packed layer loop in which every layer works on the tokens that the layers before it kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.cost import EncoderShape
from thresher.core.gates import protected_tokens
from thresher.engine.backends.base import Backend
from thresher.engine.choose import choose_backend
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Weights, read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import GATES_NAME, gates_of
from thresher.models.checkpoint import MANIFEST, load, load_dense


@dataclass(frozen=True)
class Output:
    """In the order of the input. logits: (batch, outputs); kept: (batch, layers) tokens each layer passed on.

    The last layer passes on the first token only, the one the head reads.
    """

    logits: Tensor
    kept: Tensor


class Engine:
    """Packed inference for one classifier, pruned or dense (a dense model is an engine without thresholds)."""

    def __init__(
        self,
        weights: Weights,
        backend: Backend,
        *,
        thresholds: Sequence[float],
        config: PruneConfig,
        dial: float = 1.0,
        why: str = "asked for",
    ) -> None:
        if not math.isfinite(dial) or dial < 0:
            raise ConfigError(f"dial = {dial} must be a number of at least 0 (0 = dense, 1 = as trained)")
        if "first" not in config.protect:
            raise ModelError("the engine's head reads the first token, so it must be protected; retrain with it")
        self.backend, self.config, self.why, self.dial = backend, config, why, dial
        self.thresholds = [0.0 if dial == 0 else float(value) * dial for value in thresholds]
        self.shape: EncoderShape = weights.shape
        self.positions = len(weights.position)
        backend.prepare(weights)

    @staticmethod
    def from_model(model: Any, *, backend: str = "auto", dtype: str = "auto", dial: float = 1.0) -> "Engine":
        """From a Hugging Face classifier in memory, with gates or without."""
        weights = read_weights(model)
        chosen, why = choose_backend(backend, dtype)
        if hasattr(model.base_model, GATES_NAME):
            gates = gates_of(model)
            thresholds, config = gates.thresholds.tolist(), gates.config
        else:
            thresholds, config = [0.0] * weights.shape.layers, PruneConfig()
        return Engine(weights, chosen, thresholds=thresholds, config=config, dial=dial, why=why)

    @staticmethod
    def load(path: str | Path, *, backend: str = "auto", dtype: str = "auto", dial: float = 1.0) -> "Engine":
        """From a folder written by thresher, or any Hugging Face folder with a classification head."""
        if (Path(path).expanduser() / MANIFEST).is_file():
            return Engine.from_model(load(path).model, backend=backend, dtype=dtype, dial=dial)
        return Engine.from_model(load_dense(path, whole=True)[0], backend=backend, dtype=dtype, dial=dial)

    def describe(self) -> dict[str, Any]:
        """What was chosen, and why."""
        return {
            "backend": self.backend.name,
            "dtype": self.backend.dtype,
            "why": self.why,
            "thresholds": [value if math.isfinite(value) else str(value) for value in self.thresholds],
            "dial": self.dial,
            "layers": self.shape.layers,
            "width": self.shape.width,
        }

    @torch.inference_mode()
    def logits(self, input_ids: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None) -> Output:
        """Classify token sequences of any lengths, in one packed batch."""
        order = sorted(range(len(input_ids)), key=lambda i: -len(input_ids[i]))
        if not order or min(len(ids) for ids in input_ids) == 0:
            raise ModelError("every sequence needs at least one token, and a batch at least one sequence")
        longest = len(input_ids[order[0]])
        if longest > self.positions:
            raise ModelError(
                f"{longest} tokens are more than the model's {self.positions} positions; truncate the text"
            )
        runs = Ragged.pack([torch.tensor(input_ids[i]) for i in order])
        types = None if token_types is None else torch.cat([torch.tensor(token_types[i]) for i in order])
        hidden = self.backend.embed(runs, types)
        hidden, runs, kept = self._layers(hidden, runs)
        back = torch.tensor(order)[runs.sequences]  # the input's number of each run
        logits = torch.empty_like(result := self.backend.head(hidden).cpu())
        logits[back] = result
        inverse = torch.empty(len(order), dtype=torch.long)
        inverse[torch.tensor(order)] = torch.arange(len(order))
        return Output(logits=logits, kept=kept[inverse])

    def _layers(self, hidden: Tensor, runs: Ragged) -> tuple[Tensor, Ragged, Tensor]:
        """All layers: the first tokens' last states (batch, width), their runs, and kept counts in packing order."""
        protected = self._protected(runs)
        last = self.shape.layers - 1
        kept = torch.ones(len(runs.sequences), self.shape.layers, dtype=torch.long)
        for index, threshold in enumerate(self.thresholds):
            if index == last:
                context = self.backend.attend_first(index, hidden, runs)
                hidden = self.backend.finish(index, context, hidden[runs.first])
                break
            context, scores = self.backend.attend(index, hidden, runs, scored=threshold > 0)
            if scores is not None:
                keep = (self._in_scale(scores, runs) > threshold) | protected
                if not bool(keep.all()):
                    runs, rows = runs.compact(keep, longest_first=self.backend.longest_first)
                    context, hidden, protected = context[rows], hidden[rows], protected[rows]
            kept[runs.sequences, index] = runs.lengths
            hidden = self.backend.finish(index, context, hidden)
        return hidden, runs, kept

    def _in_scale(self, scores: Tensor, runs: Ragged) -> Tensor:
        if self.config.scale == "relative":
            return scores
        return scores / torch.repeat_interleave(runs.lengths, runs.lengths)

    def _protected(self, runs: Ragged) -> Tensor:
        """(total,) tokens that no threshold may drop, by the same rule as the attached model's, run by run."""
        flags = [
            protected_tokens(
                self.config.protect,
                alive=torch.ones(1, len(ids), dtype=torch.bool),
                input_ids=ids[None],
                separator_id=self.config.separator_id,
            )[0]
            for ids in torch.split(runs.values, runs.lengths.tolist())
        ]
        return torch.cat(flags)
