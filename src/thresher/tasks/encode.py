"""Texts to token ids and to padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from thresher.core.losses import NOT_COUNTED as NOT_COUNTED  # whoever makes or reads such labels finds it here
from thresher.errors import DataError
from thresher.tasks.batches import sorted_batches
from thresher.tasks.task import Example
from thresher.tasks.truth import Label
from thresher.text import half_character
from thresher.tokenizing.called import TextTokenizer
from thresher.tokenizing.fast import text_tokenizer
from thresher.tokenizing.read import tokens_of
from thresher.tokenizing.tokens import Problem
from thresher.tokenizing.windows import Windows

ENCODE_ROWS = 1000
TOKENS_AT_ONCE = {"cpu": 8192, "cuda": 32768}  # a GPU spends its time waiting for the host where they are few
LONGEST_FIRST = "longest_first"


@dataclass(frozen=True)
class Span:
    """The first and the last token of an answer; both the first of all tokens where the window has none."""

    first: int
    last: int


@dataclass(frozen=True)
class TokenTags:
    """A tag for each token; NOT_COUNTED for those that are not the first of a word."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Encoded:
    """One row as token ids, without padding."""

    input_ids: list[int]
    token_type_ids: list[int] | None
    label: Label | Span | TokenTags


@dataclass(frozen=True)
class EncodedSet:
    """Encoded rows, how many of them lost tokens, and the length limit (the longest row when there is none).

    Where outputs are of tokens, a task's row may be several of these rows, and `windows` say which and of what.
    """

    rows: list[Encoded]
    truncated: int
    max_length: int
    windows: Windows | None = None

    def truncation(self, name: str) -> list[str]:
        """What is to be said of rows that are longer than the limit; `name` is what rows these are."""
        return [f"{self.truncated} {name} rows truncated to {self.max_length} tokens"] if self.truncated else []

    def of_first(self, items: int) -> "EncodedSet":
        """What is of the task's first rows, of which each may be several windows."""
        windows = None if self.windows is None else self.windows.of_first(items)
        return EncodedSet(self.rows[: items if windows is None else len(windows)], 0, self.max_length, windows)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens per row; kept, because a loop that asks for `lengths[i]` would otherwise count all rows each time."""
        return [len(row.input_ids) for row in self.rows]


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
    reader = text_tokenizer(tokenizer)
    special = reader.special(paired=paired)
    if limit is not None and special is not None and limit <= special:
        raise DataError(
            f"max_length = {limit} leaves no room for text beside {special} special tokens; "
            f"give at least {special + 1}, better the length of a typical row"
        )
    rows: list[Encoded] = []
    truncated = 0
    for start in range(0, len(examples), ENCODE_ROWS):
        chunk = examples[start : start + ENCODE_ROWS]
        items = [example.text if example.pair is None else (example.text, example.pair) for example in chunk]
        found = tokens_of(reader, items, limit=limit, cuts=truncation if paired else LONGEST_FIRST)
        for number, problem in sorted(found.problems.items()):
            raise _bad_row(reader, chunk[number], problem, row=start + number + 1, limit=limit)
        truncated += int(found.truncated.sum())
        rows += [Encoded(*row, example.label) for row, example in zip(found.rows(), chunk, strict=True)]
    return EncodedSet(rows, truncated, limit or max((len(row.input_ids) for row in rows), default=0))


def collate(rows: Sequence[Encoded], *, pad_id: int, pad_to: int = 1) -> dict[str, Tensor]:
    """Tensors of shape `(batch, length)` padded on the right to the longest row, as a multiple of `pad_to`.

    input_ids and attention_mask, token_type_ids if the tokenizer gave them, and labels `(batch,)`, long for classes and
    float32 for numbers, or `(batch, labels)` float32 for several; none where rows have none, and fewer where the last
    rows have none. Of spans they are `(batch, 2)` long, first and last token, of tags `(batch, length)` long with
    NOT_COUNTED for padding.
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
    if labels := [row.label for row in rows if row.label is not None]:
        batch["labels"] = _labels_tensor(labels, width=shape[1])
    return batch if types is None else {**batch, "token_type_ids": types}


def _labels_tensor(labels: Sequence[Label | Span | TokenTags], *, width: int) -> Tensor:
    if isinstance(labels[0], Span):
        return torch.tensor([[span.first, span.last] for span in labels if isinstance(span, Span)])
    if isinstance(labels[0], TokenTags):
        found = torch.full((len(labels), width), NOT_COUNTED, dtype=torch.long)
        for index, tags in enumerate(labels):
            if isinstance(tags, TokenTags):
                found[index, : len(tags.values)] = torch.tensor(tags.values, dtype=torch.long)
        return found
    numbers = any(isinstance(label, float | tuple) for label in labels)
    return torch.tensor(labels, dtype=torch.float32 if numbers else torch.long)


def padded_batches(data: EncodedSet, *, pad_id: int, device: str = "cpu") -> list[tuple[list[int], dict[str, Tensor]]]:
    """All rows as evaluation batches of similar lengths, for a kind of device: row numbers and tensors."""
    chosen = sorted_batches(data.lengths, max_tokens=TOKENS_AT_ONCE.get(device, TOKENS_AT_ONCE["cpu"]))
    return [(rows, collate([data.rows[i] for i in rows], pad_id=pad_id)) for rows in chosen]


def _check_row(example: Example, index: int, *, paired: bool) -> None:
    if (example.pair is not None) != paired:
        raise DataError(f"row {index + 1} {'lacks' if paired else 'has'} a second text unlike row 1; make them alike")
    for text in (example.text, example.pair or ""):
        bad = half_character(text)
        if bad is not None:
            raise DataError(f"row {index + 1} has {bad}, half a character that no tokenizer can read; remove it")


def _bad_row(reader: TextTokenizer, example: Example, problem: Problem, *, row: int, limit: int | None) -> DataError:
    """What is said of a row that has no tokens."""
    text = repr(example.text[:40])
    if problem.kind == "unread":
        return DataError(f"the tokenizer cannot read row {row}: {text}; correct or remove it")
    if problem.kind != "full" or limit is None:
        return DataError(f"row {row} has no tokens: {text}; remove it or give it text")
    first = tokens_of(reader, [example.text], limit=None, cuts=LONGEST_FIRST)
    used = first.total - (reader.special(paired=False) or 0)
    room = limit - (reader.special(paired=True) or 0)
    return DataError(
        f"row {row}: the first text, {text}, has {used} tokens and leaves no room for the second within {room}; "
        "give a larger max_length or a shorter first text"
    )
