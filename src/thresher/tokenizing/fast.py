"""The library's fast tokenizers without the call around them: their own threads, no state, no second pass.

The call asks for offsets, makes a dictionary for each text and counts everything twice. Here ids are taken as they
come, and what is too long is shortened by its ids, with the rules that the tokenizers library has for that.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from thresher.text import reads_word_by_word
from thresher.tokenizing.called import FULL, CalledTokenizer, Rows, TextTokenizer
from thresher.tokenizing.memory import WordMemory
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
        self.memory: WordMemory | None = None
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
        change truncation and padding in the middle of this one's work. Nobody adds words to it either, so it may
        remember those that it has read. Itself where rules in Python forbid a copy."""
        try:
            own = deepcopy(self)
        except Exception:  # the library raises nothing more special
            return self
        own.memory = WordMemory.of(own.inner)
        return own

    def __getstate__(self) -> dict[str, Any]:
        """Without the words that are remembered; whoever gets it begins anew."""
        return {**vars(self), "memory": self.memory is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.memory = WordMemory.of(self.inner) if state["memory"] else None

    def encode(self, items: Sequence[Any], *, limit: int | None, cuts: str) -> Rows:
        self._settle()
        if self.memory is None:
            return self._read(items, limit=limit, cuts=cuts)
        rows = Rows([], [] if self.typed else None)
        unknown = []
        for item in items:
            if not self._remembered(item, rows, limit=limit, cuts=cuts):
                unknown.append(len(rows.ids) - 1)
        if unknown:
            rows.put(unknown, self._read([items[i] for i in unknown], limit=limit, cuts=cuts))
        return rows

    def _remembered(self, item: Any, rows: Rows, *, limit: int | None, cuts: str) -> bool:
        """Add a text's row, made of words that are known; an empty one, and False, where that cannot be."""
        memory, number = self.memory, len(rows.ids)
        assert memory is not None
        rows.ids.append([])
        if rows.types is not None:
            rows.types.append([])
        texts = [memory.ids(text) for text in (item if isinstance(item, tuple) else (item,))]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return False
        frame = memory.frames[len(known) - 1]
        over = 0 if limit is None else sum(map(len, known)) + frame.special - limit
        if over > 0:
            stay = kept_counts([len(text) for text in known], over, cuts=cuts)
            if stay is None:
                rows.problems[number] = Problem("full", FULL.format(limit))
                return True
            known = [_shortened(text, count, left=self.left) for text, count in zip(known, stay, strict=True)]
            rows.truncated.add(number)
        rows.ids[number] = frame.ids(known)
        if rows.types is not None:
            rows.types[number] = frame.types(known)
        return True

    def _read(self, items: Sequence[Any], *, limit: int | None, cuts: str) -> Rows:
        """All of it by the tokenizer itself: the readable twin of what is remembered."""
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

    def characters(self, item: Any, *, limit: int, cuts: str) -> list[tuple[int | None, int, int]]:
        """For each token of a text, or a pair, that stays: which text it is of, None for special tokens, and where it
        begins and ends there, in characters."""
        (found,) = self.located([item])
        over = len(found) - limit
        stays = range(len(found)) if over <= 0 else kept_places(found.sequence_ids, over, cuts=cuts, left=self.left)
        return [(found.sequence_ids[place], *found.offsets[place]) for place in stays or ()]

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
    texts = [[place for place, sequence in enumerate(sequences) if sequence == text] for text in (0, 1)]
    stay = kept_counts([len(text) for text in texts[: 1 + (1 in sequences)]], over, cuts=cuts)
    if stay is None:
        return None
    keeps = {place for text, count in zip(texts, stay, strict=False) for place in _shortened(text, count, left=left)}
    return [place for place, sequence in enumerate(sequences) if sequence is None or place in keeps]


def kept_counts(lengths: Sequence[int], over: int, *, cuts: str) -> tuple[int, ...] | None:
    """How many tokens of one text, or of each of two, stay when `over` of them are too many; None where the second text
    has not that many."""
    if len(lengths) == 1 and cuts == "longest_first":
        return (max(0, lengths[0] - over),)
    first, second = (*lengths, 0)[:2]
    if cuts == "longest_first":
        return longest_first(first, second, first + second - over)
    return (first, second - over) if second > over else None


def longest_first(one: int, two: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay within `room`: the longer gives way until both are as long, then both do."""
    room, short, long = max(0, room), min(one, two), max(one, two)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (short, long) if one <= two else (long, short)


def _shortened(tokens: list[int], count: int, *, left: bool) -> list[int]:
    return tokens[len(tokens) - count :] if left else tokens[:count]
