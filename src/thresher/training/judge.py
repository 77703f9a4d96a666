"""What a model under training predicts, on batches that are shared out over the processes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor

from thresher.core.cost import relative_flops
from thresher.core.losses import distillation_loss
from thresher.models.attach import encoder_shape
from thresher.models.predict import Batch, OnBatch, Predictions, predict
from thresher.tasks.chance import below_chance, same_labels
from thresher.tasks.encode import EncodedSet, padded_batches
from thresher.tasks.task import Task, TaskSpec, labelled
from thresher.training.targets import padded

SAME = 1e-4  # scores and embeddings that differ by less, relative to their size, are one answer
MORE = "it needs more training: more rows, more epochs (--finetune-epochs), or a higher --lr"


def doubts(task: Task, logits: NDArray[Any], metrics: Mapping[str, float]) -> list[str]:
    """What is to be said of a dense model and the rows that choose, where what pruning loses could not be seen. logits,
    metrics: the model's on these rows."""
    rows = task.selection
    return [
        *one_answer_for_all(task.spec, logits),
        *below_chance(task.spec, metrics, rows=len(rows)),
        *same_labels(task.spec, rows),
    ]


def one_answer_for_all(spec: TaskSpec, logits: NDArray[Any]) -> list[str]:
    """What is to be said of a model that has one answer for all rows. logits: (rows, outputs)."""
    means = spec.means
    if means == "span":
        return []  # what its answers are takes their texts; the F1 of answerable questions says it
    if means == "tags":
        found = np.unique(logits.argmax(axis=1))
        said = f"the dense model tags every token '{spec.labels[int(found[0])]}': nothing can be lost; {MORE}"
        return [said] if len(found) == 1 else []
    if means == "classes":
        answers = np.unique(logits.argmax(axis=1))
        only = f"answers '{spec.labels[int(answers[0])]}' to"
    elif means == "labels":
        answers = np.unique(logits > 0, axis=0)
        only = f"gives {', '.join(np.array(spec.labels)[answers[0]]) or 'no label'} to"
    else:
        size = max(float(np.abs(logits).max()), 1e-12)
        answers = logits[:1] if np.ptp(logits, axis=0).max() < SAME * size else logits
        only = f"gives the same {means} to"
    if len(answers) != 1 or means == "value":  # a correlation of 0 says it of values
        return []
    return [f"the dense model {only} every selection row: nothing can be lost; {MORE}"]


class Judge:
    """Judges a model on selection rows, in the precision of training."""

    def __init__(
        self, model: Any, accelerator: Accelerator, task: Task, selection: EncodedSet, *, pad_id: int, bf16: bool
    ) -> None:
        self._model, self._accelerator, self._task, self._bf16 = model, accelerator, task, bf16
        self._shape = encoder_shape(model)
        self.labelled = labelled(task.selection, name=task.spec.name)
        self._selection = selection
        # These rows choose: what they are judged by also chooses the null threshold.
        chosen = task.spec.truth(task.selection, data=selection).with_threshold(None) if self.labelled else None
        self._truth = chosen
        self.batches = padded_batches(selection, pad_id=pad_id, device=accelerator.device.type)

    def refer_to(self, dense: Tensor) -> None:
        """Rows without labels are judged against the dense model's outputs for them, (inputs, outputs)."""
        if not self.labelled:
            spec, rows = self._task.spec, self._task.selection
            self._truth = spec.truth(rows, dense=dense.numpy(), data=self._selection)

    def evaluate(self, *, pruned: bool) -> dict[str, float]:
        """Metrics; with relative FLOPs when pruned."""
        return self.score(self.predict(self.batches, pruned=pruned))

    def score(self, found: Predictions) -> dict[str, float]:
        """Metrics of predictions for the selection rows."""
        assert self._truth is not None  # rows without labels are referred to the dense model first
        scores = self._task.score(found.logits.numpy(), self._truth)
        if found.kept is not None:
            scores["relative_flops"] = float(relative_flops(self._shape, found.lengths, found.kept))
        return scores

    def predict(self, batches: list[Batch], *, pruned: bool, on_batch: OnBatch | None = None) -> Predictions:
        """Each process does its share of the batches, and tells its own `on_batch`; all get all predictions."""
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        mine = batches[rank::world]
        with torch.autocast(self._accelerator.device.type, dtype=torch.bfloat16, enabled=self._bf16):
            found = [predict(self._model, mine, pruned=pruned, on_batch=on_batch)] if mine else []
        return Predictions.merge(gather_object(found) if world > 1 else found)

    def predict_with(
        self, weights: Mapping[str, Tensor], batches: list[Batch], *, on_batch: OnBatch | None = None
    ) -> Tensor:
        """(rows, outputs) logits of the dense model with these weights; the model keeps its own."""
        current = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        self._model.load_state_dict(weights, strict=False)
        logits = self.predict(batches, pruned=False, on_batch=on_batch).logits
        self._model.load_state_dict(current)
        return logits

    def divergence_from(self, logits: Tensor) -> float:
        """Of hard pruning from others' predictions for the selection rows, as `predict` gives them."""
        found = self.predict(self.batches, pruned=True)
        ours, theirs, alive = found.logits, logits, None
        if found.of_tokens:
            (ours, alive), (theirs, _) = (padded(each, found.lengths) for each in (found.logits, logits))
        return float(distillation_loss(ours, theirs, temperature=1.0, means=self._task.spec.means, alive=alive))
