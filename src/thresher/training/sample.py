"""Rows as a model reads them, those that costs are measured on, and what of them can never be saved."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.gates import protected_tokens
from thresher.models.defaults import longest_read
from thresher.models.predict import Batch
from thresher.tasks.encode import EncodedSet, collate, padded_batches, usable_positions
from thresher.tasks.encode_tokens import encode_for
from thresher.tasks.task import TaskSpec

ROWS, BATCH = 384, 64


def encoded(
    model: Any, tokenizer: Any, spec: TaskSpec, examples: Sequence[Any], *, max_length: int | None
) -> EncodedSet:
    """What a model under training reads of rows."""
    length, positions = longest_read(model, tokenizer, max_length), usable_positions(model.config)
    options: Any = {"max_length": length, "positions": positions, "truncation": spec.truncation}
    return encode_for(spec.means, tokenizer, examples, **options)


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
