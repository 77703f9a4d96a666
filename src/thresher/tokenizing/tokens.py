"""Many texts' token ids in one array, end to end: what tokenizing gives and executors pack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """Why a text has no tokens. kind: input (no text at all), unread (the tokenizer failed), nothing (it found no
    token), room (nothing but special tokens fits), full (the first text of a pair leaves no room) or table (a token
    that the model lacks)."""

    kind: str
    says: str


@dataclass(frozen=True)
class Tokens:
    """ids, types: (total,) int32, the texts end to end (types: None where the tokenizer gives none); starts:
    (texts + 1,) int64, where each text begins, and the total; truncated: (texts,) bool. A text of `problems`, by its
    number, has no tokens."""

    ids: Ints
    types: Ints | None
    starts: Places
    truncated: NDArray[np.bool_]
    problems: dict[int, Problem] = field(default_factory=dict)

    @staticmethod
    def of(ids: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] | None = None) -> "Tokens":
        """Of a list for each text. Types that are missing for some texts are zeros."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        total, flat = int(lengths.sum()), None
        if types is not None and any(kinds is not None for kinds in types):
            given = (kinds if kinds is not None else [0] * len(row) for kinds, row in zip(types, ids, strict=True))
            flat = _flat(given, total)
        return Tokens(_flat(ids, total), flat, starts_of(lengths), np.zeros(len(ids), np.bool_))

    @staticmethod
    def joined(parts: "Sequence[Tokens]") -> "Tokens":
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        typed = any(part.types is not None for part in parts)
        problems: dict[int, Problem] = {}
        before = 0
        for part in parts:
            problems |= {before + number: problem for number, problem in part.problems.items()}
            before += len(part)
        return Tokens(
            ids=np.concatenate([part.ids for part in parts]),
            types=np.concatenate([part.known_types() for part in parts]) if typed else None,
            starts=starts_of(np.concatenate([part.lengths for part in parts])),
            truncated=np.concatenate([part.truncated for part in parts]),
            problems=problems,
        )

    def __len__(self) -> int:
        """Texts, those with a problem among them."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> Places:
        """(texts,) tokens of each."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def known_types(self) -> Ints:
        """(total,), zeros where there are none."""
        return np.zeros(self.total, np.int32) if self.types is None else self.types

    def take(self, numbers: Any) -> "Tokens":
        """The texts of these numbers, in this order, without their problems. numbers: (fewer,) integers."""
        numbers = np.asarray(numbers, np.int64)
        lengths = self.lengths[numbers]
        starts = starts_of(lengths)
        places = np.arange(starts[-1]) + np.repeat(self.starts[numbers] - starts[:-1], lengths)
        types = None if self.types is None else self.types[places]
        return Tokens(self.ids[places], types, starts, self.truncated[numbers])

    def between(self, first: int, end: int) -> "Tokens":
        """Neighbouring texts, from number `first` to before `end`: views, no copies."""
        low, high = int(self.starts[first]), int(self.starts[end])
        return Tokens(
            ids=self.ids[low:high],
            types=None if self.types is None else self.types[low:high],
            starts=self.starts[first : end + 1] - low,
            truncated=self.truncated[first:end],
            problems={number - first: found for number, found in self.problems.items() if first <= number < end},
        )

    def without(self, problems: dict[int, Problem]) -> "Tokens":
        """The same texts, but those of these problems have no tokens."""
        if not problems:
            return self
        good = np.ones(len(self), np.bool_)
        good[list(problems)] = False
        stays = np.repeat(good, self.lengths)
        return Tokens(
            ids=self.ids[stays],
            types=None if self.types is None else self.types[stays],
            starts=starts_of(np.where(good, self.lengths, 0)),
            truncated=self.truncated & good,
            problems={**self.problems, **problems},
        )

    def rows(self) -> list[tuple[list[int], list[int] | None]]:
        """A list of ids, and one of types or None, for each text."""
        ids, bounds = self.ids.tolist(), self.starts.tolist()
        types = None if self.types is None else self.types.tolist()
        pairs = zip(bounds[:-1], bounds[1:], strict=True)
        return [(ids[low:high], None if types is None else types[low:high]) for low, high in pairs]


def starts_of(lengths: Any) -> Places:
    """(texts,) -> (texts + 1,)."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _flat(rows: Iterable[Sequence[int]], total: int) -> Ints:
    return np.fromiter(chain.from_iterable(rows), np.int32, total)
