"""Words that a tokenizer has seen before need not be read again: several times as fast, and the same ids.

It is for tokenizers of BERT's kind, which cut a text at spaces and punctuation and then make pieces of each word by
itself. The tokenizer reads every new word; what it made of it is kept here. Everything that does not come down to
words by themselves (a special token written out in the text) is left to the tokenizer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

MOST_WORDS = 1 << 17  # then all are forgotten: a stream of made-up words must not fill the memory
LONGEST = 64  # characters of a word that is worth remembering
MANY_ADDED = 64  # tokens beside the vocabulary that a text is searched for
_ODD = re.compile(r"[^ -~]+")  # not ASCII, or control characters, which some normalizers take out of words
_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")  # ASCII words and single punctuation characters


class _Words(dict[str, tuple[int, ...]]):
    """Each word's ids, asked of the tokenizer when the word comes for the first time."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(word) > LONGEST:  # perhaps millions of letters: a batch leaves the interpreter to other threads
            return tuple(self.inner.encode_batch_fast([word], add_special_tokens=False)[0].ids)
        found = tuple(self.inner.encode(word, add_special_tokens=False).ids)
        if len(self) >= MOST_WORDS:
            self.clear()
        self[word] = found
        return found


@dataclass(frozen=True)
class Frame:
    """What stands around the texts: parts in their order, each the number of a text (0 or 1) or special ids, with its
    token type."""

    parts: tuple[tuple[int | tuple[int, ...], int], ...]

    @staticmethod
    def of(inner: Any, *, paired: bool) -> "Frame":
        """Read off what the tokenizer makes of two words."""
        made = inner.encode("a", "a") if paired else inner.encode("a")
        parts: list[tuple[int | tuple[int, ...], int]] = []
        for token, kind, text in zip(made.ids, made.type_ids, made.sequence_ids, strict=True):
            if text is None:
                parts.append(((token,), kind))
            elif (text, kind) not in parts:  # the word may have several pieces
                parts.append((text, kind))
        return Frame(tuple(parts))

    @cached_property
    def special(self) -> int:
        return sum(len(part) for part, _ in self.parts if not isinstance(part, int))

    def ids(self, texts: Sequence[Sequence[int]]) -> list[int]:
        found: list[int] = []
        for part, _ in self.parts:
            found += texts[part] if isinstance(part, int) else part
        return found

    def types(self, texts: Sequence[Sequence[int]]) -> list[int]:
        found: list[int] = []
        for part, kind in self.parts:
            found += [kind] * len(texts[part] if isinstance(part, int) else part)
        return found


class WordMemory:
    """For one tokenizer that nobody else changes. Any thread may ask."""

    def __init__(self, inner: Any, *, lowercase: bool, added: Sequence[str]) -> None:
        self._words, self._lowercase = _Words(inner), lowercase
        self._marks = {text[0] for text in added}
        self._added = re.compile("|".join(re.escape(text) for text in added)) if added else None
        self.frames = (Frame.of(inner, paired=False), Frame.of(inner, paired=True))

    @staticmethod
    def of(inner: Any) -> "WordMemory | None":
        """None where a text is more than its words to this tokenizer, or might be."""
        kinds = tuple(type(part).__name__ for part in (inner.normalizer, inner.pre_tokenizer, inner.model))
        if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
            return None
        added = list(inner.get_added_tokens_decoder().values())
        # A token that is searched for in normalized text may stand there in many ways.
        if len(added) > MANY_ADDED or any(token.normalized for token in added):
            return None
        return WordMemory(inner, lowercase=bool(inner.normalizer.lowercase), added=[token.content for token in added])

    def ids(self, text: str) -> list[int] | None:
        """The text's ids without special tokens; None where only the tokenizer can tell."""
        if self._added is not None and any(mark in text for mark in self._marks) and self._added.search(text):
            return None
        if text.isascii() and text.isprintable():  # no odd character; most texts have none
            return self._plain(text)
        found: list[int] = []
        text, done = text.replace("\t", " ").replace("\n", " ").replace("\r", " "), 0
        for odd in _ODD.finditer(text):
            if odd.start() >= done:
                # Lower case, accents and invisible characters are the tokenizer's business; none reaches over a space.
                low = max(done, text.rfind(" ", done, odd.start()) + 1)
                end = text.find(" ", odd.end())
                high = len(text) if end < 0 else end
                found += self._plain(text[done:low])
                found += self._words[text[low:high]]
                done = high
        return found + self._plain(text[done:])

    def _plain(self, text: str) -> list[int]:
        words = _WORDS.findall(text.lower() if self._lowercase else text)
        return list(chain.from_iterable(map(self._words.__getitem__, words)))
