"""Rows as a model reads them, those that costs are measured on, and what of them can never be saved."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.gates import protected_tokens
from thresher.models.defaults import longest_read, positions_of, prompt_of
from thresher.models.predict import Batch
from thresher.tasks.encode import EncodedSet, collate, padded_batches
from thresher.tasks.encode_tokens import encode_for
from thresher.tasks.task import Task, TaskSpec

ROWS, BATCH = 384, 64


def encoded(
    model: Any, tokenizer: Any, spec: TaskSpec, examples: Sequence[Any], *, max_length: int | None
) -> EncodedSet:
    """What a model under training reads of rows."""
    length, positions = longest_read(model, tokenizer, max_length), positions_of(model, max_length)
    options: Any = {"max_length": length, "positions": positions, "truncation": spec.truncation}
    return encode_for(spec.means, tokenizer, examples, **options)


@dataclass(frozen=True)
class Rows:
    """What a run reads: rows to train on, rows without labels beside them, and those that choose."""

    train: EncodedSet
    more: EncodedSet
    selection: EncodedSet

    @property
    def longest(self) -> int:
        """Tokens of any row."""
        return max(self.train.lengths + self.more.lengths + self.selection.lengths)

    def truncation(self) -> list[str]:
        """What is to be said of rows that are longer than the limit."""
        named = {"training": self.train, "more": self.more, "selection": self.selection}
        return [text for name, rows in named.items() for text in rows.truncation(name)]


def read_rows(model: Any, tokenizer: Any, task: Task, *, max_length: int | None) -> Rows:
    spec, prompt = task.spec, prompt_of(model)
    read = functools.partial(encoded, model, tokenizer, spec, max_length=max_length)
    return Rows(
        train=read(spec.training_rows(task.train, prompt=prompt)),
        more=read(task.more) if task.more else EncodedSet([], 0, 0),
        selection=read(spec.inputs(task.selection, prompt=prompt)),
    )


def cost_sample(data: EncodedSet, *, pad_id: int, seed: int, mixed: bool) -> list[Batch]:
    """A few rows, the same every time. A threshold found in one batch must suit the others: where scores depend on the
    length, batches must be `mixed`; of like lengths they have little padding."""
    order = torch.randperm(len(data.rows), generator=torch.Generator().manual_seed(seed))
    chosen = [data.rows[i] for i in order[:ROWS].tolist()]
    if not mixed:
        return padded_batches(EncodedSet(chosen, 0, data.max_length), pad_id=pad_id)
    parts = [list(range(at, min(at + BATCH, len(chosen)))) for at in range(0, len(chosen), BATCH)]
    return [(part, collate([chosen[i] for i in part], pad_id=pad_id)) for part in parts]


def protected_counts(config: PruneConfig, batches: Sequence[Batch]) -> Tensor:
    """(rows,) tokens of each row that nothing drops, at least one."""
    counts = torch.ones(sum(len(rows) for rows, _ in batches), dtype=torch.long)
    for rows, batch in batches:
        alive, ids = batch["attention_mask"].bool(), batch["input_ids"]
        kept = protected_tokens(config.protect, alive=alive, input_ids=ids, separator_id=config.separator_id)
        counts[rows] = kept.sum(dim=1).clamp(min=1)
    return counts
