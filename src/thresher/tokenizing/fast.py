"""The library's fast tokenizers without the call around them: their own threads, no state, no second pass.

The call asks for offsets, makes a dictionary for each text and counts everything twice. Here ids are taken as they
come, and what is too long is shortened by its ids, with the rules that the tokenizers library has for that.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from thresher.text import reads_word_by_word
from thresher.tokenizing.called import FULL, CalledTokenizer, Rows, TextTokenizer
from thresher.tokenizing.tokens import Problem

# Methods between the call and the tokenizers library; a class that has its own does something else.
BETWEEN = (
    "__call__",
    "_encode_plus",
    "_batch_encode_plus",
    "_call_one",
    "_convert_encoding",
    "_switch_to_input_mode",
    "set_truncation_and_padding",
    "num_special_tokens_to_add",
)


class FastTokenizer:
    """A tokenizer of the tokenizers library. It can be sent to another process, which needs neither torch nor
    transformers."""

    parallel = True

    def __init__(self, inner: Any, *, typed: bool, left: bool, splits_special: bool, word_by_word: bool) -> None:
        """inner: a `tokenizers.Tokenizer`; typed: whether the call gives token types; left: whether it truncates
        there."""
        self.inner, self.typed, self.left = inner, typed, left
        self.splits_special, self.word_by_word = splits_special, word_by_word
        self._settle()  # before several threads find it

    @staticmethod
    def of(tokenizer: Any) -> "FastTokenizer | None":
        """What a tokenizer of the transformers library comes down to; None where its call does more."""
        from transformers import PreTrainedTokenizerFast

        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            return None
        for name in BETWEEN:
            if getattr(type(tokenizer), name, None) is not getattr(PreTrainedTokenizerFast, name, None):
                return None
            if name in vars(tokenizer):
                return None
        return FastTokenizer(
            tokenizer.backend_tokenizer,
            typed="token_type_ids" in tokenizer.model_input_names,
            left=tokenizer.truncation_side == "left",
            splits_special=bool(getattr(tokenizer, "split_special_tokens", False)),
            word_by_word=reads_word_by_word(tokenizer),
        )

    def apart(self) -> "FastTokenizer":
        """The same with an inner tokenizer of its own: whoever calls the one it was made of, in another thread, would
        change truncation and padding in the middle of this one's work. Itself where rules in Python forbid a copy."""
        try:
            return deepcopy(self)
        except Exception:  # the library raises nothing more special
            return self

    def encode(self, items: Sequence[Any], *, limit: int | None, cuts: str) -> Rows:
        self._settle()
        found = self.inner.encode_batch_fast(list(items))
        rows = Rows([each.ids for each in found], [each.type_ids for each in found] if self.typed else None)
        if limit is None:
            return rows
        for i, each in enumerate(found):
            if len(each) <= limit:
                continue
            stays = kept_places(each.sequence_ids, len(each) - limit, cuts=cuts, left=self.left)
            if stays is None:
                rows.problems[i] = Problem("full", FULL.format(limit))
                continue
            rows.truncated.add(i)
            rows.ids[i] = [rows.ids[i][place] for place in stays]
            if rows.types is not None:
                rows.types[i] = [rows.types[i][place] for place in stays]
        return rows

    def located(self, items: Sequence[Any]) -> list[Any]:
        """Whole texts or pairs as the tokenizers library gives them, which know their characters and words."""
        self._settle()
        found: list[Any] = self.inner.encode_batch(list(items))
        return found

    def special(self, *, paired: bool) -> int | None:
        return int(self.inner.num_special_tokens_to_add(paired))

    def reads_word_by_word(self) -> bool:
        return self.word_by_word

    def _settle(self) -> None:
        """A tokenizer keeps the padding and truncation of its last call; whoever made that does not count here."""
        if self.inner.truncation is not None:
            self.inner.no_truncation()
        if self.inner.padding is not None:
            self.inner.no_padding()
        if self.inner.encode_special_tokens != self.splits_special:
            self.inner.encode_special_tokens = self.splits_special


def text_tokenizer(tokenizer: Any) -> TextTokenizer:
    """The fast way where it is the same, or else the call."""
    return FastTokenizer.of(tokenizer) or CalledTokenizer(tokenizer)


def kept_places(sequences: Sequence[int | None], over: int, *, cuts: str, left: bool) -> list[int] | None:
    """Which of a text's places stay when `over` tokens are too many; None where the second text has not that many.

    sequences: (tokens,) 0 and 1 for the first and the second text, None for special tokens, which all stay.
    """
    first = [place for place, sequence in enumerate(sequences) if sequence == 0]
    second = [place for place, sequence in enumerate(sequences) if sequence == 1]
    paired = bool(second) or 1 in sequences
    if not paired and cuts == "longest_first":
        one, two = max(0, len(first) - over), 0
    elif cuts == "longest_first":
        one, two = longest_first(len(first), len(second), len(first) + len(second) - over)
    else:
        one, two = len(first), len(second) - over
        if two <= 0:
            return None
    gone = {*_lost(first, one, left=left), *_lost(second, two, left=left)}
    return [place for place in range(len(sequences)) if place not in gone]


def longest_first(one: int, two: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay within `room`: the longer gives way until both are as long, then both do."""
    room, short, long = max(0, room), min(one, two), max(one, two)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (short, long) if one <= two else (long, short)


def _lost(places: list[int], stay: int, *, left: bool) -> list[int]:
    return places[: len(places) - stay] if left else places[stay:]
