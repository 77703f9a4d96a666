"""Run a model over padded batches and collect what every evaluation needs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thresher.models.attach import gates_of
from thresher.models.gating import Gates

Batch = tuple[list[int], dict[str, Tensor]]  # row numbers, and the tensors of these rows


@dataclass(frozen=True)
class Predictions:
    """rows: (n,) row numbers, logits: (n, outputs), lengths: (n,), kept: (n, layers) or None without pruning."""

    rows: Tensor
    logits: Tensor
    lengths: Tensor
    kept: Tensor | None

    @staticmethod
    def merge(parts: "Sequence[Predictions]") -> "Predictions":
        """One set of predictions in row order."""
        order = torch.cat([part.rows for part in parts]).argsort()
        kept = [part.kept for part in parts if part.kept is not None]
        return Predictions(
            rows=torch.cat([part.rows for part in parts])[order],
            logits=torch.cat([part.logits for part in parts])[order],
            lengths=torch.cat([part.lengths for part in parts])[order],
            kept=torch.cat(kept)[order] if kept else None,
        )


@contextmanager
def evaluating(model: nn.Module, mode: str) -> Iterator[Gates]:
    """The model without dropout and with its gates in `mode`, for a while; both are left as found, also on an error."""
    gates, was_training = gates_of(model), model.training
    before = gates.mode
    gates.set_mode(mode)
    model.eval()
    try:
        yield gates
    finally:
        gates.set_mode(before)
        model.train(was_training)


@torch.inference_mode()
def predict(
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    pruned: bool,
    on_batch: Callable[[int, int], None] | None = None,
) -> Predictions:
    """Evaluate a model with gates: hard decisions with `pruned`, the stock dense forward without.

    Mode and training flag are left as found. `on_batch(done, total)` is told about progress.
    """
    device = next(model.parameters()).device
    parts = []
    with evaluating(model, "hard" if pruned else "off") as gates, gates.shortening():
        for index, (rows, batch) in enumerate(batches):
            inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items() if name != "labels"}
            logits = model(**inputs).logits.float()
            lengths = inputs["attention_mask"].sum(dim=-1)
            kept = gates.trace.kept().cpu() if gates.trace is not None else None
            parts.append(Predictions(torch.tensor(rows), logits.cpu(), lengths.cpu(), kept))
            if on_batch:
                on_batch(index + 1, len(batches))
    return Predictions.merge(parts)
