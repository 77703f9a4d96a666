"""Quality, relative FLOPs and kept tokens of a model on held-out rows, overall and by length quartile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thresher.core.cost import EncoderShape, dense_macs, engine_relative_flops, flops, paper_macs, relative_flops
from thresher.errors import DataError
from thresher.models.attach import encoder_shape, gates_of, length_in_training
from thresher.models.classes import check_class_order, check_classes, how_classes_differ
from thresher.models.defaults import longest_read, positions_of, prompt_of
from thresher.models.heads import head_of
from thresher.models.pairs import other_kind
from thresher.models.predict import Predictions, device_of, predict
from thresher.tasks.bootstrap import judged
from thresher.tasks.encode import EncodedSet, padded_batches
from thresher.tasks.encode_tokens import encode_for
from thresher.tasks.of_tokens import score_of_parts
from thresher.tasks.task import Example, Task, labelled, model_inputs, truncation_of
from thresher.tasks.truth import Truth


@dataclass(frozen=True)
class Quartile:
    """The rows whose length in tokens lies in [shortest, longest]."""

    shortest: int
    longest: int
    rows: int
    score: float
    relative_flops: float | None

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Quartile":
        ends = {name: int(saved[name]) for name in ("shortest", "longest", "rows")}
        return cls(**ends, score=float(saved["score"]), relative_flops=_share(saved["relative_flops"]))


@dataclass(frozen=True)
class Quality:
    """One model on one split. `relative_flops` is in the paper's accounting; `engine_relative_flops` counts what packed
    execution computes over what dense packed execution computes. None where the model does not prune."""

    split: str
    rows: int
    truncated: int
    mean_length: float
    metrics: dict[str, float]
    gflops_dense: float
    gflops: float
    relative_flops: float | None
    engine_relative_flops: float | None
    kept_per_layer: list[float] | None
    quartiles: list[Quartile]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Any) -> "Quality":
        """What `to_dict` wrote; KeyError, TypeError or ValueError for anything else."""
        if not isinstance(saved, dict):
            raise TypeError(f"{type(saved).__name__} in place of a table")
        kept = saved.get("kept_per_layer")
        return cls(
            split=str(saved.get("split", "")),
            rows=int(saved["rows"]),
            truncated=int(saved.get("truncated", 0)),
            mean_length=float(saved["mean_length"]),
            metrics={str(name): float(value) for name, value in dict(saved["metrics"]).items()},
            gflops_dense=float(saved["gflops_dense"]),
            gflops=float(saved["gflops"]),
            relative_flops=_share(saved.get("relative_flops")),
            engine_relative_flops=_share(saved.get("engine_relative_flops")),
            kept_per_layer=None if kept is None else [float(count) for count in kept],
            quartiles=[Quartile.from_dict(part) for part in saved.get("quartiles", [])],
        )


def _share(value: Any) -> float | None:
    return None if value is None else float(value)


def check_outputs(model: Any, task: Task, *, name: object, manifest: Mapping[str, Any] | None = None) -> None:
    """Refuse a model that was not made for rows like the task's; `name` is what the user calls the model.

    Unrelated tasks often have the same number of outputs: a run's `manifest` also knows its classes, and whether its
    rows are pairs, where it was saved with them.
    """
    outputs = model.config.num_labels
    if task.spec.num_labels and outputs != task.spec.num_labels:
        raise DataError(f"{name} has {outputs} outputs, but task {task.spec.name} has {task.spec.num_labels}")
    if task.spec.labels:
        check_class_order(model, task.spec.labels)
    _check_classes(_trained_on(manifest or {}).get("labels"), task, name=name)
    if other := other_kind(manifest or {}, given_pairs=task.spec.pair_column is not None):
        own, given = other
        raise DataError(f"{name} is for {own}, but task {task.spec.name} has {given}; give rows like the run's own")


def _trained_on(manifest: Mapping[str, Any]) -> dict[str, Any]:
    task = manifest.get("task")
    return task if isinstance(task, dict) else {}


def _check_classes(trained: Any, task: Task, *, name: object) -> None:
    """Refuse classes of other names, and the same ones in another order, which would be scored as each other."""
    classes = [str(label) for label in trained] if isinstance(trained, list) else []
    differ = how_classes_differ(classes, task.spec.labels)
    if differ is None:
        return
    how = " in this order" if differ == "order" else ""
    raise DataError(
        f"{name} has the classes {', '.join(classes)}{how}, but task {task.spec.name} has "
        f"{', '.join(task.spec.labels)}; give rows of the run's own classes"
    )


def evaluate(
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    split: str | None = None,
    max_length: int | None = None,
    pruned: bool = True,
    on_batch: Callable[[int, int], None] | None = None,
    dense: NDArray[Any] | None = None,
    null_threshold: float | None = None,
) -> Quality:
    """Hard evaluation of a model with gates on a test split (the first one by default).

    Rows are truncated to `max_length` tokens, or where they were in training, or else to what the model can take; of
    rerankers and embedders never later than where their folder says.
    `pruned=False` runs the same weights dense. `on_batch(done, total)` is told about progress.
    Rows without labels are judged by agreement with `dense`, the dense model's outputs (`outputs_of`); not given, and
    with `pruned=False`, a model agrees with itself. An answer is withheld where none scores higher by more than
    `null_threshold` (see `chosen_threshold`); not given, by the model's own, as it is served.
    """
    if max_length is None:
        max_length = length_in_training(model)
    name = split or next(iter(task.test), "")
    examples: list[Example] = task.test.get(name, [])
    if not examples:
        known = ", ".join(known for known, rows in task.test.items() if rows) or "none"
        raise DataError(f"task {task.spec.name} has no test rows in split '{name}'; splits with rows: {known}")
    if task.spec.labels:
        check_classes(model, task.spec.labels, order=task.spec.class_order)
    data = encoded_rows(model, tokenizer, task, examples, max_length=max_length)
    batches = padded_batches(data, pad_id=tokenizer.pad_token_id, device=device_of(model))
    found = predict(model, batches, pruned=pruned, on_batch=on_batch)
    reference = found.logits.numpy() if dense is None and not pruned else dense
    threshold = head_of(model).threshold if null_threshold is None else null_threshold
    truth = task.spec.truth(examples, dense=reference, data=data).with_threshold(threshold)
    shape = encoder_shape(model)
    gates, whole = gates_of(model), dense_macs(shape, found.lengths)
    alone = shape.layers if gates.restores else min(gates.first_alone(), shape.layers - 1)
    spent = paper_macs(shape, found.lengths, found.kept) if found.kept is not None else whole
    return Quality(
        split=name,
        rows=len(examples),
        truncated=data.truncated,
        mean_length=float(found.lengths.float().mean()),
        metrics=task.score(found.logits.numpy(), truth),
        gflops_dense=float(flops(whole).double().mean()) / 1e9,
        gflops=float(flops(spent).double().mean()) / 1e9,
        relative_flops=float(relative_flops(shape, found.lengths, found.kept)) if found.kept is not None else None,
        engine_relative_flops=(
            engine_relative_flops(shape, found.lengths, found.kept, alone=alone) if found.kept is not None else None
        ),
        kept_per_layer=found.kept.double().mean(dim=0).tolist() if found.kept is not None else None,
        quartiles=_by_quartile(task, shape, found, truth),
    )


def encoded_rows(
    model: Any, tokenizer: Any, task: Task, examples: Sequence[Example], *, max_length: int | None
) -> EncodedSet:
    """What the model reads of the task's rows."""
    positions, cut = positions_of(model, max_length), task.spec.truncation
    rows = task.spec.inputs(examples, prompt=prompt_of(model))
    length = longest_read(model, tokenizer, max_length)
    return encode_for(task.spec.means, tokenizer, rows, max_length=length, positions=positions, truncation=cut)


def chosen_threshold(
    model: Any, tokenizer: Any, task: Task, *, max_length: int | None = None, pruned: bool = True
) -> float | None:
    """The null threshold that suits a model best on the task's selection rows; None where they have no labels, and
    where nothing is ever withheld. Rows that judge a model must not choose it."""
    if task.spec.means != "span" or not labelled(task.selection, name=task.spec.name):
        return None
    data = encoded_rows(model, tokenizer, task, task.selection, max_length=max_length or length_in_training(model))
    batches = padded_batches(data, pad_id=tokenizer.pad_token_id, device=device_of(model))
    logits = predict(model, batches, pruned=pruned).logits.numpy()
    return task.score(logits, task.spec.truth(task.selection, data=data).with_threshold(None))["null_threshold"]


def encoded_inputs(model: Any, tokenizer: Any, examples: Sequence[Example], *, max_length: int | None) -> EncodedSet:
    """What the model reads of rows, by what its own head means: like `encoded_rows`, where there is no task."""
    head = head_of(model)
    return encode_for(
        head.means,
        tokenizer,
        model_inputs(head.means, examples, prompt=prompt_of(model)),
        max_length=longest_read(model, tokenizer, max_length),
        positions=positions_of(model, max_length),
        truncation=truncation_of(head.means),
    )


def outputs_of(
    model: Any, tokenizer: Any, task: Task, *, split: str, max_length: int | None, pruned: bool = False
) -> NDArray[Any]:
    """(inputs, outputs) of a model with gates on a test split, dense unless `pruned`."""
    data = encoded_rows(model, tokenizer, task, task.test[split], max_length=max_length)
    batches = padded_batches(data, pad_id=tokenizer.pad_token_id, device=device_of(model))
    found: NDArray[Any] = predict(model, batches, pruned=pruned).logits.numpy()
    return found


def _by_quartile(task: Task, shape: EncoderShape, found: Predictions, truth: Truth) -> list[Quartile]:
    """Split the rows at the quartiles of their length; equal lengths stay together, so parts may differ in size.

    Embeddings of labelled pairs are two sequences a row, long contexts several. Rows of a query that are judged
    together stay together, by their mean length.
    """
    owner = _rows_of_inputs(found, truth)
    row_lengths = torch.zeros(truth.rows, dtype=found.lengths.dtype).index_add(0, owner, found.lengths)
    sizes = row_lengths.double().numpy()
    if truth.labelled and truth.groups is not None:
        sizes = (np.bincount(truth.groups, weights=sizes) / np.maximum(np.bincount(truth.groups), 1))[truth.groups]
    parts = judged(task.spec, found.logits.numpy(), truth)
    edges = np.quantile(sizes, [0.25, 0.5, 0.75])
    part = torch.from_numpy(np.searchsorted(edges, sizes, side="left"))
    quartiles = []
    for index in range(4):
        rows: Tensor = (part == index).nonzero().squeeze(-1)
        if len(rows) == 0:
            continue
        inputs = torch.isin(owner, rows)
        lengths = found.lengths[inputs]
        quartiles.append(
            Quartile(
                shortest=int(row_lengths[rows].min()),
                longest=int(row_lengths[rows].max()),
                rows=len(rows),
                score=_score_of(task, parts, truth, rows=rows, inputs=inputs),
                relative_flops=(
                    float(relative_flops(shape, lengths, found.kept[inputs])) if found.kept is not None else None
                ),
            )
        )
    return quartiles


def _rows_of_inputs(found: Predictions, truth: Truth) -> Tensor:
    """(inputs,) the number of the row that each is of."""
    if truth.windows is not None:
        return torch.from_numpy(truth.windows.rows)
    return torch.arange(truth.rows).repeat_interleave(len(found.lengths) // truth.rows)


def _score_of(task: Task, outputs: NDArray[Any], truth: Truth, *, rows: Tensor, inputs: Tensor) -> float:
    """The score of some rows. outputs: of all inputs, or each row's part where they are of tokens."""
    if truth.windows is None:
        return task.score(outputs[inputs.numpy()], truth.of(rows.numpy()))["score"]
    return float(score_of_parts(task.spec, outputs[rows.numpy()], np.ones((1, len(rows))), labelled=truth.labelled)[0])
