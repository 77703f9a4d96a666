"""From tag logits of tokens to tags of words, and from those to entities in characters.

A word's tag is that of its first token, as in the transformers pipeline with aggregation_strategy="first"; windows know
the words. Neighbouring words of one kind are one entity until a B- or S- begins another, or an E- or S- ends it: what
seqeval counts, and for B- and I- what the pipeline groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.tokenizing.windows import Windows, deciding

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S", "L", "U")  # L and U are other names of E and S
BEGINS, ENDS = ("B", "S", "U"), ("E", "S", "L", "U")


@dataclass(frozen=True)
class Entity:
    """text[start:end], and the mean probability of its words' tags."""

    label: str
    start: int
    end: int
    score: float


def chunks(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Label, first word and the one after the last of every entity."""
    found: list[tuple[str, int, int]] = []
    before = (OUTSIDE, "")
    for place, tag in enumerate(tags):
        prefix, label = now = split_tag(tag)
        if prefix != OUTSIDE:
            if before[1] == label and before[0] not in (OUTSIDE, *ENDS) and prefix not in BEGINS:
                found[-1] = (label, found[-1][1], place + 1)
            else:
                found.append((label, place, place + 1))
        before = now
    return found


def split_tag(tag: str) -> tuple[str, str]:
    """B-PER is B and PER; a tag without a prefix is inside of what it names."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, label = tag.partition("-")
    return (prefix, label) if dash and prefix in PREFIXES else ("I", tag)


def first_tokens(windows: Windows) -> NDArray[np.int64]:
    """(words,) the places of the tokens that decide: the first of every word, in the window that reads it, item by item
    in the order of words. A word's tokens stay together in one window or the next; its first one decides."""
    places = np.flatnonzero(deciding(windows))
    items = np.repeat(windows.rows, windows.tokens.lengths)[places]
    words = windows.words[places]
    order = np.lexsort((places, words, items))
    places, items, words = places[order], items[order], words[order]
    new = np.ones(len(places), np.bool_)
    new[1:] = (items[1:] != items[:-1]) | (words[1:] != words[:-1])
    return places[new]


def word_tags(windows: Windows, logits: NDArray[Any], words: Sequence[int]) -> list[NDArray[np.int64]]:
    """The tag of each word of each item, -1 for one that no token stands for. logits: (total, tags); words: how many
    there are in each item."""
    best = np.asarray(logits).argmax(axis=1) if len(logits) else np.zeros(0, np.int64)
    found = [np.full(count, -1, np.int64) for count in words]
    places = first_tokens(windows)
    items = np.repeat(windows.rows, windows.tokens.lengths)[places]
    for place, item, word in zip(places.tolist(), items.tolist(), windows.words[places].tolist(), strict=True):
        if 0 <= word < len(found[item]):
            found[item][word] = best[place]
    return found


def find_entities(windows: Windows, logits: NDArray[Any], tags: Sequence[str]) -> list[list[Entity] | None]:
    """The entities of each item's text, in its order; None for an item with a problem. logits: (total, tags)."""
    if logits.shape != (windows.tokens.total, len(tags)):
        raise ValueError(f"logits of shape {logits.shape}, expected {(windows.tokens.total, len(tags))}")
    found: list[list[Entity] | None] = [None if item in windows.problems else [] for item in range(windows.items)]
    places = first_tokens(windows)
    of_token = np.repeat(windows.rows, windows.tokens.lengths)
    items, ends = of_token[places], _word_ends(windows, of_token, places)
    own = np.asarray(logits, np.float64)[places]
    shares = np.exp(own - own.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    best, begins = shares.argmax(axis=1), windows.offsets[places, 0]
    for item in np.unique(items).tolist():
        low, high = np.searchsorted(items, [item, item + 1]).tolist()
        named = [tags[tag] for tag in best[low:high].tolist()]
        found[item] = [
            Entity(
                label,
                int(begins[low + first]),
                int(ends[low + end - 1]),
                float(shares[np.arange(low + first, low + end), best[low + first : low + end]].mean()),
            )
            for label, first, end in chunks(named)
        ]
    return found


def _word_ends(windows: Windows, of_token: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int32]:
    """(words,) where the word of each of the places ends: with its last token that is in any window."""
    inner = np.flatnonzero(windows.inside)
    key = of_token * (int(windows.words.max(initial=0)) + 2) + windows.words + 1
    names, number = np.unique(key[inner], return_inverse=True)
    last = np.zeros(len(names), np.int32)
    np.maximum.at(last, number, windows.offsets[inner, 1])
    ends: NDArray[np.int32] = last[np.searchsorted(names, key[places])]
    return ends
