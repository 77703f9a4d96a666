"""What is read of a source and when, and which texts share a batch."""

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import numpy as np

from thresher.tokenizing.tokens import Places, Tokens

Item = str | tuple[str, str]
# A piece is what one thread tokenizes at a time: large enough that handing it over costs little, small enough that many
# threads have work before the first batch is full.
PIECE_CHARACTERS = 65_536
PIECE_TEXTS = 1024


class Source:
    """Texts, read in pieces and in windows by the thread that asks for answers.

    A live source, which is any without a length, is read for the next window only when every answer of the one before
    has been handed out: its next text may come late, or depend on an answer. What has a length is there already, and
    is read ahead; so is a live source that may be (`ahead`).
    """

    def __init__(self, items: Iterable[Item], *, window: int, small: bool, ahead: bool) -> None:
        """small: whether pieces are to be smaller than windows."""
        self._stream: Iterator[Item] = iter(items)
        self._window, self._small = window, small
        self._ahead = ahead or count_of(items) is not None
        self._left, self._owed, self.ended = window, 0, False
        self.failure: Exception | None = None

    def handed_out(self, texts: int) -> None:
        """So many texts more have been answered, and whoever asked has looked at the answers."""
        self._owed -= texts

    def piece(self) -> list[Item]:
        """The next texts; none where there are no more, or not yet."""
        if self._left == 0 and (self._ahead or self._owed == 0):
            self._left = self._window
        if self.ended or self._left == 0:
            return []
        found: list[Item] = []
        try:
            if self._small:
                self._read_small(found)
            else:
                found.extend(islice(self._stream, self._left))
                self.ended = len(found) < self._left
        except Exception as error:  # what was read before still counts
            self.failure, self.ended = error, True
        self._left -= len(found)
        self._owed += len(found)
        return found

    @property
    def owes(self) -> bool:
        """Whether texts were read that are not answered yet."""
        return self._owed > 0

    @property
    def pauses(self) -> bool:
        """Whether nothing more is to come before what was read is answered."""
        return self.ended or (self._left == 0 and not self._ahead)

    def _read_small(self, found: list[Item]) -> None:
        characters = 0
        for item in islice(self._stream, min(self._left, PIECE_TEXTS)):
            found.append(item)
            characters += characters_of(item)
            if characters >= PIECE_CHARACTERS:
                return
        self.ended = len(found) < min(self._left, PIECE_TEXTS)


class Neighbours:
    """Groups of neighbouring texts that fill a batch, whatever pieces they were read in: batches of a stream are then
    alike, and a GPU needs few graphs for them."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens, self._parts, self._total = max_tokens, list[Tokens](), 0

    def add(self, tokens: Tokens) -> None:
        self._parts.append(tokens)
        self._total += tokens.total

    def take(self, *, rest: bool) -> Tokens | None:
        """A full group, or None; the `rest`, too, where nothing follows it. More texts than tokens fit are full as
        well: they are bad ones, and without tokens they would be held back for ever."""
        full = self._total > self.max_tokens or sum(map(len, self._parts)) > self.max_tokens
        if not self._parts or not (full or rest):
            return None
        joined = Tokens.joined(self._parts)
        if self._total <= self.max_tokens:
            self._parts, self._total = [], 0
            return joined
        end = max(1, int(np.searchsorted(joined.starts, self.max_tokens, side="right")) - 1)
        left = joined.between(end, len(joined))
        self._parts, self._total = [left] if len(left) else [], left.total
        return joined.between(0, end)


def batches_of(tokens: Tokens, max_tokens: int, *, by_length: bool) -> list[Places]:
    """The numbers of the texts of each batch, at most `max_tokens` tokens each; a longer text is a batch of its own."""
    return batches_of_lengths(tokens.lengths, max_tokens, by_length=by_length)


def batches_of_lengths(lengths: Places, max_tokens: int, *, by_length: bool) -> list[Places]:
    """The same by the texts' lengths (texts,) alone: `predict` and servers plan their batches here."""
    good = np.flatnonzero(lengths > 0)
    if by_length:
        good = good[np.argsort(-lengths[good], kind="stable")]
    found, start, used = [], 0, 0
    for place, length in enumerate(lengths[good].tolist()):
        if place > start and used + length > max_tokens:
            found.append(good[start:place])
            start, used = place, 0
        used += length
    return [*found, good[start:]] if len(good) else []


def count_of(items: Iterable[Item]) -> int | None:
    """How many there are, where that is known before they are read."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # a wrapper of a stream, such as a progress bar, may only look as if it had a length
        return None


def characters_of(item: Any) -> int:
    """Of a text, or of a tuple or list of texts; what is neither gets an error later."""
    if isinstance(item, str):
        return len(item)
    return sum(len(part) for part in item if isinstance(part, str)) if isinstance(item, tuple | list) else 0
