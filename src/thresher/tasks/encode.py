"""Texts to token ids and to padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from thresher.errors import DataError
from thresher.tasks.batches import sorted_batches
from thresher.tasks.task import Example
from thresher.text import half_character

ENCODE_ROWS = 1000

# Families that number positions from pad_token_id + 1 (create_position_ids_from_input_ids in transformers), so that
# many of their position embeddings are never used. MPNet does the same with its padding index fixed at 1.
OFFSET_FAMILIES = frozenset(
    {
        "camembert",
        "data2vec-text",
        "ibert",
        "lilt",
        "longformer",
        "luke",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


@dataclass(frozen=True)
class Encoded:
    """One row as token ids, without padding."""

    input_ids: list[int]
    token_type_ids: list[int] | None
    label: float | int


@dataclass(frozen=True)
class EncodedSet:
    """Encoded rows, how many of them lost tokens, and the length limit (the longest row when there is none)."""

    rows: list[Encoded]
    truncated: int
    max_length: int

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens per row; kept, because a loop that asks for `lengths[i]` would otherwise count all rows each time."""
        return [len(row.input_ids) for row in self.rows]


def usable_positions(config: Any) -> int | None:
    """The longest sequence in tokens that a model of this Hugging Face configuration can read; None if unlimited."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    family = getattr(config, "model_type", "")
    if family == "mpnet":
        return int(positions) - 2
    if family in OFFSET_FAMILIES:
        padding = getattr(config, "pad_token_id", None)
        return int(positions) - (1 if padding is None else int(padding)) - 1
    return int(positions)


def encode(tokenizer: Any, examples: Sequence[Example], *, max_length: int | None, positions: int | None) -> EncodedSet:
    """Tokenize all rows; rows longer than `max_length` or the model's `positions` are truncated and counted."""
    for index, example in enumerate(examples):
        _check_row(example, index, paired=examples[0].pair is not None)
    limits = [limit for limit in (max_length, positions) if limit is not None]
    limit = min(limits) if limits else None
    paired = bool(examples) and examples[0].pair is not None
    special = int(tokenizer.num_special_tokens_to_add(pair=paired))
    if limit is not None and limit <= special:
        raise DataError(
            f"max_length = {limit} leaves no room for text beside {special} special tokens; "
            f"give at least {special + 1}, better the length of a typical row"
        )
    rows: list[Encoded] = []
    truncated = 0
    for start in range(0, len(examples), ENCODE_ROWS):
        chunk = examples[start : start + ENCODE_ROWS]
        encoded = _tokenize(tokenizer, chunk, limit=None, first_row=start + 1)
        if limit is not None:
            # Only the few rows that are too long are tokenized again: a fast tokenizer's own record of what it cut
            # grows with the product of both texts' lengths.
            long = [i for i, row in enumerate(encoded) if len(row.input_ids) > limit]
            shorter = _call(tokenizer, [chunk[i] for i in long], limit) if long else []
            for i, row in zip(long, shorter, strict=True):
                encoded[i] = row
            truncated += len(long)
        for i, row in enumerate(encoded):
            if not row.input_ids:
                raise DataError(f"row {start + i + 1} has no tokens: {chunk[i].text[:40]!r}; remove it or give it text")
        rows += encoded
    return EncodedSet(rows, truncated, limit or max((len(row.input_ids) for row in rows), default=0))


def collate(rows: Sequence[Encoded], *, pad_id: int, pad_to: int = 1) -> dict[str, Tensor]:
    """Tensors of shape `(batch, length)` padded on the right to the longest row, as a multiple of `pad_to`.

    input_ids and attention_mask, token_type_ids if the tokenizer gave them, and labels `(batch,)`: long for classes,
    float32 for regression.
    """
    if not rows or pad_to < 1:
        raise ValueError(f"{len(rows)} rows padded to a multiple of {pad_to}: both numbers must be at least 1")
    longest = max(len(row.input_ids) for row in rows)
    shape = (len(rows), -(-longest // pad_to) * pad_to)
    input_ids = torch.full(shape, pad_id, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.long)
    types = torch.zeros(shape, dtype=torch.long) if rows[0].token_type_ids is not None else None
    for index, row in enumerate(rows):
        length = len(row.input_ids)
        input_ids[index, :length] = torch.tensor(row.input_ids, dtype=torch.long)
        attention_mask[index, :length] = 1
        if types is not None:
            types[index, :length] = torch.tensor(row.token_type_ids, dtype=torch.long)
    regression = any(isinstance(row.label, float) for row in rows)
    labels = torch.tensor([row.label for row in rows], dtype=torch.float32 if regression else torch.long)
    batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    return batch if types is None else {**batch, "token_type_ids": types}


def padded_batches(
    data: EncodedSet, *, pad_id: int, max_tokens: int = 8192
) -> list[tuple[list[int], dict[str, Tensor]]]:
    """All rows as evaluation batches of similar lengths: row numbers and tensors."""
    chosen = sorted_batches(data.lengths, max_tokens=max_tokens)
    return [(rows, collate([data.rows[i] for i in rows], pad_id=pad_id)) for rows in chosen]


def _check_row(example: Example, index: int, *, paired: bool) -> None:
    if (example.pair is not None) != paired:
        raise DataError(f"row {index + 1} {'lacks' if paired else 'has'} a second text unlike row 1; make them alike")
    for text in (example.text, example.pair or ""):
        bad = half_character(text)
        if bad is not None:
            raise DataError(f"row {index + 1} has {bad}, half a character that no tokenizer can read; remove it")


def _tokenize(tokenizer: Any, examples: Sequence[Example], *, limit: int | None, first_row: int) -> list[Encoded]:
    try:
        return _call(tokenizer, examples, limit)
    except (TypeError, ValueError) as error:
        # The tokenizer does not say which row it failed on: find it, so that the message can.
        for number, example in enumerate(examples, start=first_row):
            try:
                _call(tokenizer, [example], limit)
            except (TypeError, ValueError):
                raise DataError(
                    f"the tokenizer cannot read row {number}: {example.text[:40]!r}; correct or remove it"
                ) from error
        raise


def _call(tokenizer: Any, examples: Sequence[Example], limit: int | None) -> list[Encoded]:
    texts = [example.text for example in examples]
    pairs = None if examples[0].pair is None else [example.pair for example in examples]
    # verbose=False: rows beyond the tokenizer's own maximum are truncated and counted by us, without its warning.
    found = tokenizer(
        texts,
        pairs,
        padding=False,
        truncation=False if limit is None else "longest_first",
        max_length=limit,
        return_attention_mask=False,
        verbose=False,
    )
    types = found["token_type_ids"] if "token_type_ids" in found else [None] * len(examples)
    return [Encoded(*row) for row in zip(found["input_ids"], types, (e.label for e in examples), strict=True)]
