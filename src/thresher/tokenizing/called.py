"""Any tokenizer by its call, as the transformers library has it: the readable twin of fast.py, and slow tokenizers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from thresher.tokenizing.tokens import Problem

FULL = "the first text leaves no room for the second within {} tokens; shorten it, or give a larger max_length"


@dataclass(frozen=True)
class Rows:
    """Texts as lists of ids and of types (None where the tokenizer gives none); which of them lost tokens, and which
    cannot be shortened."""

    ids: list[list[int]]
    types: list[list[int]] | None
    truncated: set[int] = field(default_factory=set)
    problems: dict[int, Problem] = field(default_factory=dict)

    def put(self, places: Sequence[int], rows: "Rows") -> None:
        """Rows in the places of these."""
        for number, place in enumerate(places):
            self.ids[place] = rows.ids[number]
            if self.types is not None and rows.types is not None:
                self.types[place] = rows.types[number]
            if number in rows.truncated:
                self.truncated.add(place)
            if number in rows.problems:
                self.problems[place] = rows.problems[number]


class TextTokenizer(Protocol):
    """Texts, or pairs of texts, to rows; whatever fails in it fails for all of them."""

    parallel: bool  # whether several threads may call it at once

    def encode(self, items: Sequence[Any], *, limit: int | None, cuts: str) -> Rows:
        """Of texts alone, or pairs alone. What has more than `limit` tokens is shortened: `cuts` says which of a pair,
        "longest_first" or "only_second"."""

    def special(self, *, paired: bool) -> int | None:
        """How many special tokens a text gets; None where nobody knows."""

    def reads_word_by_word(self) -> bool:
        """See thresher.text."""


class CalledTokenizer:
    """One call for all texts, and a second for those that are too long."""

    parallel = False  # a tokenizer keeps its truncation as state

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, items: Sequence[Any], *, limit: int | None, cuts: str) -> Rows:
        whole = self._call(items, None, cuts)
        if limit is None:
            return whole
        # Only the few that are too long are tokenized again: a fast tokenizer's own record of what it cut grows with
        # the product of both texts' lengths.
        long = [i for i, ids in enumerate(whole.ids) if len(ids) > limit]
        problems: dict[int, Problem] = {}
        paired = bool(items) and isinstance(items[0], tuple)
        for i in long:
            try:
                shorter = self._call([items[i]], limit, cuts if paired else "longest_first")
            except Exception:
                if not (paired and cuts == "only_second"):
                    raise
                problems[i] = Problem("full", FULL.format(limit))  # whole it could be read: nothing else is at fault
                continue
            if len(shorter.ids[0]) > limit:
                problems[i] = Problem("full", FULL.format(limit))
                continue
            whole.ids[i] = shorter.ids[0]
            if whole.types is not None and shorter.types is not None:
                whole.types[i] = shorter.types[0]
        return Rows(whole.ids, whole.types, set(long) - set(problems), problems)

    def special(self, *, paired: bool) -> int | None:
        if not hasattr(self.tokenizer, "num_special_tokens_to_add"):  # any function may stand in for a tokenizer
            return None
        return int(self.tokenizer.num_special_tokens_to_add(pair=paired))

    def reads_word_by_word(self) -> bool:
        from thresher.text import reads_word_by_word

        return reads_word_by_word(self.tokenizer)

    def _call(self, items: Sequence[Any], limit: int | None, cuts: str) -> Rows:
        if not items:
            return Rows([], None)
        paired = isinstance(items[0], tuple)
        # verbose=False: what is beyond the tokenizer's own maximum is truncated and marked here, without its warning.
        found = self.tokenizer(
            [item[0] if paired else item for item in items],
            [item[1] for item in items] if paired else None,
            padding=False,
            truncation=False if limit is None else cuts,
            max_length=limit,
            return_attention_mask=False,
            verbose=False,
        )
        types = list(found["token_type_ids"]) if "token_type_ids" in found else None
        return Rows(list(found["input_ids"]), types)
