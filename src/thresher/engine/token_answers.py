"""Many texts' outputs of every token: what heads that read all tokens give, before it is read as answers or tags."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import Head
from thresher.engine.predictions import Outputs


@dataclass(frozen=True)
class TokenAnswers:
    """As `Answers`, but `rows` has (tokens, outputs) for each text; here a text is one window of one."""

    head: Head
    rows: tuple[Outputs, ...]
    kept: NDArray[np.int32]
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    problems: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def joined(parts: "Sequence[TokenAnswers]") -> "TokenAnswers":
        """One after the other; at least one part."""
        problems: dict[int, str] = {}
        before = 0
        for part in parts:
            problems |= {before + number: says for number, says in part.problems.items()}
            before += len(part)
        arrays: Any = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in ("kept", "tokens", "truncated")
        }
        return TokenAnswers(
            parts[0].head, tuple(row for part in parts for row in part.rows), problems=problems, **arrays
        )

    def take(self, numbers: Any) -> "TokenAnswers":
        """The texts of these numbers, in this order."""
        chosen = np.asarray(numbers, np.int64)
        problems = {i: self.problems[n] for i, n in enumerate(chosen.tolist()) if n in self.problems}
        rows = tuple(self.rows[number] for number in chosen.tolist())
        arrays = (self.kept[chosen], self.tokens[chosen], self.truncated[chosen])
        return TokenAnswers(self.head, rows, *arrays, problems)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """(texts,) whether there is a result."""
        found = np.ones(len(self), np.bool_)
        found[list(self.problems)] = False
        return found

    @property
    def outputs(self) -> Outputs:
        """(total, outputs), the texts end to end."""
        return np.concatenate(self.rows)
