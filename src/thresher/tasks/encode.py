"""Texts to token ids and to padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from thresher.errors import DataError, is_failure
from thresher.tasks.batches import sorted_batches
from thresher.tasks.task import Example
from thresher.tasks.truth import Label
from thresher.text import FAR, beginning, half_character, reads_word_by_word

ENCODE_ROWS = 1000
LONGEST_FIRST = "longest_first"

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
    label: Label


@dataclass(frozen=True)
class EncodedSet:
    """Encoded rows, how many of them lost tokens, and the length limit (the longest row when there is none)."""

    rows: list[Encoded]
    truncated: int
    max_length: int

    def truncation(self, name: str) -> list[str]:
        """What is to be said of rows that are longer than the limit; `name` is what rows these are."""
        return [f"{self.truncated} {name} rows truncated to {self.max_length} tokens"] if self.truncated else []

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


def encode(
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    max_length: int | None,
    positions: int | None,
    truncation: str = LONGEST_FIRST,
) -> EncodedSet:
    """Tokenize all rows; rows longer than `max_length` or the model's `positions` are truncated and counted.

    `truncation` says where a pair is cut: 'longest_first', or 'only_second' where the first text must stay whole. A
    first text that leaves no room is an error.
    """
    for index, example in enumerate(examples):
        _check_row(example, index, paired=examples[0].pair is not None)
    limits = [limit for limit in (max_length, positions) if limit is not None]
    limit = min(limits) if limits else None
    paired = bool(examples) and examples[0].pair is not None
    cut = truncation if paired else LONGEST_FIRST  # a text alone has no second one
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
        read, encoded = _tokenize_enough(tokenizer, chunk, limit=limit, first_row=start + 1)
        if limit is not None:
            # Only the few rows that are too long are tokenized again: a fast tokenizer's own record of what it cut
            # grows with the product of both texts' lengths.
            long = [i for i, row in enumerate(encoded) if len(row.input_ids) > limit]
            if cut == "only_second":
                _check_room(tokenizer, chunk, long, limit=limit - special, first_row=start + 1)
            shorter = _call(tokenizer, [read[i] for i in long], limit, cut) if long else []
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

    input_ids and attention_mask, token_type_ids if the tokenizer gave them, and labels `(batch,)`, long for classes and
    float32 for numbers, or `(batch, labels)` float32 for several; none where rows have none.
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
    batch = {"input_ids": input_ids, "attention_mask": attention_mask}
    if any(row.label is not None for row in rows):
        numbers = any(isinstance(row.label, float | tuple) for row in rows)
        batch["labels"] = torch.tensor([row.label for row in rows], dtype=torch.float32 if numbers else torch.long)
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


def _check_room(
    tokenizer: Any, examples: Sequence[Example], long: Sequence[int], *, limit: int, first_row: int
) -> None:
    """Of pairs that are cut at the second text, the first must leave room for a token of it."""
    for i in long:
        (first,) = _call(tokenizer, [replace(examples[i], pair=None)], None)
        used = len(first.input_ids) - int(tokenizer.num_special_tokens_to_add(pair=False))
        if used >= limit:
            raise DataError(
                f"row {first_row + i}: the first text, {examples[i].text[:40]!r}, has {used} tokens and leaves no room "
                f"for the second within {limit}; give a larger max_length or a shorter first text"
            )


def _tokenize_enough(
    tokenizer: Any, examples: Sequence[Example], *, limit: int | None, first_row: int
) -> tuple[list[Example], list[Encoded]]:
    """What is read of each row, and its tokens without truncation: of a row far beyond `limit` only a beginning, which
    is still longer than that."""
    read = [_cut(tokenizer, example, limit) for example in examples]
    encoded = _tokenize(tokenizer, read, limit=None, first_row=first_row)
    for i, example in enumerate(examples):
        if read[i] is not example and len(encoded[i].input_ids) <= (limit or 0):
            read[i] = example
            encoded[i] = _tokenize(tokenizer, [example], limit=None, first_row=first_row + i)[0]
    return read, encoded


def _cut(tokenizer: Any, example: Example, limit: int | None) -> Example:
    """A text that is far too long, cut where that changes none of the tokens that are left; ten million characters take
    minutes to tokenize. Of pairs the longer loses more, so that their lengths must be known."""
    if limit is None or example.pair is not None or len(example.text) <= FAR * limit:
        return example
    if not reads_word_by_word(tokenizer):
        return example
    text = beginning(example.text, limit)
    return example if len(text) == len(example.text) else replace(example, text=text)


def _tokenize(tokenizer: Any, examples: Sequence[Example], *, limit: int | None, first_row: int) -> list[Encoded]:
    try:
        return _call(tokenizer, examples, limit)
    except BaseException as error:
        if not is_failure(error):
            raise
        # The tokenizer does not say which row it failed on: find it, so that the message can.
        for number, example in enumerate(examples, start=first_row):
            try:
                _call(tokenizer, [example], limit)
            except BaseException as own:
                if not is_failure(own):
                    raise
                raise DataError(
                    f"the tokenizer cannot read row {number}: {example.text[:40]!r}; correct or remove it"
                ) from error
        raise


def _call(
    tokenizer: Any, examples: Sequence[Example], limit: int | None, truncation: str = LONGEST_FIRST
) -> list[Encoded]:
    texts = [example.text for example in examples]
    pairs = None if examples[0].pair is None else [example.pair for example in examples]
    # verbose=False: rows beyond the tokenizer's own maximum are truncated and counted by us, without its warning.
    found = tokenizer(
        texts,
        pairs,
        padding=False,
        truncation=False if limit is None else truncation,
        max_length=limit,
        return_attention_mask=False,
        verbose=False,
    )
    types = found["token_type_ids"] if "token_type_ids" in found else [None] * len(examples)
    return [Encoded(*row) for row in zip(found["input_ids"], types, (e.label for e in examples), strict=True)]
