"""The words of a string, as those are divided that people tag: at spaces, and punctuation apart from what it stands by.

A model that was trained on words learned the tag of each by its first token, whatever tokenizers make of the inside:
'1996-12-06' is one word, 'U.S.' another. Strings come without that division. Characters of scripts that have no spaces
are words of their own, as tokenizers take them.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np

from thresher.tokenizing.windows import Windows, numbered

FEWEST = 2  # characters of a word that may own something
APOSTROPHES = "'\u2019"


def divided(windows: Windows, texts: Sequence[str]) -> Windows:
    """Windows of texts whose `words` are numbers of these words, in place of the tokenizer's own."""
    return numbered(windows, lambda item: np.array([end for _, end in words_of(texts[item])], np.int64))


def words_of(text: str) -> list[tuple[int, int]]:
    """Where every word begins and ends. They touch or are apart by spaces, and nothing else is left out."""
    found, place = list[tuple[int, int]](), 0
    for piece in text.split():
        start = text.index(piece, place)
        place = start + len(piece)
        found += [(start + low, start + high) for low, high in _parts(piece)]
    return found


def _parts(piece: str) -> list[tuple[int, int]]:
    """The words of what stands between two spaces."""
    low, high = 0, len(piece)
    if piece[1:] == "s" and piece[0] in APOSTROPHES:
        return [(0, high)]
    while low < high and _is_edge(piece[low]):
        low += 1
    while high > low and _is_edge(piece[high - 1]):
        high -= 1
    before = [(place, place + 1) for place in range(low)]
    last = piece[low:high][-2:]
    if piece[high : high + 1] == "." and last[-1:].isalpha() and last[:-1] in ("", "."):
        high += 1  # an initial, or an abbreviation; any other dot ends a sentence
    after = [(place, place + 1) for place in range(high, len(piece))]
    owns = high - low > FEWEST and piece[high - 1] == "s" and piece[high - 2] in APOSTROPHES
    inner = _ideographs(piece, low, high - FEWEST if owns else high)
    return [*before, *inner, *([(high - FEWEST, high)] if owns else []), *after]


def _ideographs(piece: str, low: int, high: int) -> list[tuple[int, int]]:
    """The piece from `low` to before `high`, cut around every character that is a word."""
    cuts = {low, high}
    for place in range(low, high):
        if _is_word(piece[place]):
            cuts |= {place, place + 1}
    ends = sorted(cuts)
    return list(zip(ends[:-1], ends[1:], strict=True))


def _is_edge(character: str) -> bool:
    """Punctuation, and signs; a mark belongs to its letter."""
    return unicodedata.category(character)[0] in "PS"


def _is_word(character: str) -> bool:
    """Whether the character is of a script without spaces, and stands for a word or so: what tokenizers cut apart."""
    return unicodedata.name(character, "").startswith(("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH"))
