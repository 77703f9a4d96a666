"""Run a model over padded batches and collect what every evaluation needs."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thresher.models.attach import gates_of


@dataclass(frozen=True)
class Predictions:
    """Rows in the order of the batches. logits: (rows, outputs), lengths: (rows,), kept: (rows, layers) or None."""

    logits: Tensor
    lengths: Tensor
    kept: Tensor | None


@torch.inference_mode()
def predict(model: nn.Module, batches: Iterable[dict[str, Tensor]], *, pruned: bool) -> Predictions:
    """Evaluate a model on batches of input_ids, attention_mask and optional token_type_ids; labels are ignored.

    With `pruned`, gates decide hard and the kept counts are recorded; without, the stock forward runs.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    logits, lengths, kept = [], [], []
    for batch in batches:
        inputs = {name: value.to(device, non_blocking=True) for name, value in batch.items() if name != "labels"}
        logits.append(model(**inputs).logits.float())
        lengths.append(inputs["attention_mask"].sum(dim=-1))
        if pruned:
            trace = gates_of(model).trace
            assert trace is not None  # a forward pass in a pruning mode always leaves a trace
            kept.append(trace.kept())
    model.train(was_training)
    return Predictions(
        logits=torch.cat(logits).cpu(),
        lengths=torch.cat(lengths).cpu(),
        kept=torch.cat(kept).cpu() if pruned else None,
    )
