"""Run a model over padded batches and collect what every evaluation needs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thresher.models.attach import gates_of
from thresher.models.gating import Gates
from thresher.models.heads import head_of, outputs_in

Batch = tuple[list[int], dict[str, Tensor]]  # row numbers, and the tensors of these rows
OnBatch = Callable[[int, int], None]  # told how many batches are done, and of how many


@dataclass(frozen=True)
class Predictions:
    """rows: (n,) row numbers, logits: (n, outputs), lengths: (n,), kept: (n, layers) or None without pruning.

    Of heads that read tokens, logits are (tokens, outputs): all rows' tokens end to end, without padding.
    """

    rows: Tensor
    logits: Tensor
    lengths: Tensor
    kept: Tensor | None
    of_tokens: bool = False

    @staticmethod
    def merge(parts: "Sequence[Predictions]") -> "Predictions":
        """One set of predictions in row order."""
        order = torch.cat([part.rows for part in parts]).argsort()
        kept = [part.kept for part in parts if part.kept is not None]
        logits, lengths = (torch.cat([getattr(part, name) for part in parts]) for name in ("logits", "lengths"))
        if parts[0].of_tokens:
            of_row = torch.split(logits, lengths.tolist())
            logits = torch.cat([of_row[row] for row in order.tolist()])
        else:
            logits = logits[order]
        return Predictions(
            rows=torch.cat([part.rows for part in parts])[order],
            logits=logits,
            lengths=lengths[order],
            kept=torch.cat(kept)[order] if kept else None,
            of_tokens=parts[0].of_tokens,
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


def device_of(model: nn.Module) -> str:
    """The kind of device that a model lies on: "cpu", "cuda"."""
    return next(model.parameters()).device.type


@torch.inference_mode()
def predict(
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    pruned: bool,
    on_batch: OnBatch | None = None,
) -> Predictions:
    """Evaluate a model with gates: hard decisions with `pruned`, the stock dense forward without.

    Mode and training flag are left as found. `on_batch` is told about progress.
    """
    device, of_tokens = next(model.parameters()).device, head_of(model).reads == "tokens"
    parts = []
    with evaluating(model, "hard" if pruned else "off") as gates, gates.shortening():
        for index, (rows, batch) in enumerate(batches):
            inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items() if name != "labels"}
            logits = outputs_in(model(**inputs)).float()
            if of_tokens:
                logits = logits[inputs["attention_mask"].bool()]
            lengths = inputs["attention_mask"].sum(dim=-1)
            kept = gates.trace.kept().cpu() if gates.trace is not None else None
            parts.append(Predictions(torch.tensor(rows), logits.cpu(), lengths.cpu(), kept, of_tokens))
            if on_batch:
                on_batch(index + 1, len(batches))
    return Predictions.merge(parts)
