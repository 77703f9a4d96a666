"""Many texts' results as arrays, for bulk use; a Prediction is made of a row when somebody asks for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import Head
from thresher.engine.predictions import Outputs, Prediction, answers, likely, numbers, sigmoid, softmax


@dataclass(frozen=True)
class Answers:
    """Texts in their order, those with an error among them.

    outputs: (texts, outputs) float32, what the head gave, not a number where there is an error; kept: (texts, layers)
    int32, how many tokens each layer passed on, zeros where nothing was computed; tokens: (texts,) int64; truncated:
    (texts,) bool; problems: errors by the text's number. `names` are those of the classes.
    """

    head: Head
    names: tuple[str, ...]
    outputs: Outputs
    kept: NDArray[np.int32]
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    problems: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def joined(parts: "Sequence[Answers]") -> "Answers":
        """One after the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        problems: dict[int, str] = {}
        before = 0
        for part in parts:
            problems |= {before + number: says for number, says in part.problems.items()}
            before += len(part)
        return Answers(
            head=parts[0].head,
            names=parts[0].names,
            outputs=np.concatenate([part.outputs for part in parts]),
            kept=np.concatenate([part.kept for part in parts]),
            tokens=np.concatenate([part.tokens for part in parts]),
            truncated=np.concatenate([part.truncated for part in parts]),
            problems=problems,
        )

    def take(self, numbers: Any) -> "Answers":
        """The texts of these numbers, in this order. numbers: (fewer,) integers."""
        numbers = np.asarray(numbers, np.int64)
        problems = {
            place: self.problems[number] for place, number in enumerate(numbers.tolist()) if number in self.problems
        }
        return Answers(
            head=self.head,
            names=self.names,
            outputs=self.outputs[numbers],
            kept=self.kept[numbers],
            tokens=self.tokens[numbers],
            truncated=self.truncated[numbers],
            problems=problems,
        )

    def __len__(self) -> int:
        return len(self.outputs)

    @cached_property
    def probabilities(self) -> Outputs:
        """(texts, classes), of one label or of several; (texts, 0) for heads without classes."""
        if self.head.means == "classes":
            return softmax(self.outputs)
        return sigmoid(self.outputs) if self.head.means == "labels" else self.outputs[:, :0]

    @cached_property
    def values(self) -> Outputs:
        """(texts,) of a regression, or a reranker's scores; (0,) for other heads."""
        if self.head.means not in ("value", "score"):
            return np.empty(0, np.float32)
        return numbers(self.head, self.outputs)

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """(texts,) number of the likeliest class, -1 where there is an error; (0,) for heads without one label."""
        if self.head.means != "classes":
            return np.empty(0, np.int64)
        found = np.zeros(len(self), np.int64)
        good = self.good
        found[good] = self.outputs[good].argmax(axis=1)
        found[~good] = -1
        return found

    @cached_property
    def labels(self) -> NDArray[np.object_]:
        """(texts,) the likeliest class's name, or a tuple of all likely names; None where there is none."""
        found = np.full(len(self), None, np.object_)
        if self.head.means == "classes":
            good = self.good
            found[good] = np.asarray(self.names, np.object_)[self.classes[good]]
        elif self.head.means == "labels":
            rows = self.probabilities.tolist()
            for number in np.flatnonzero(self.good).tolist():
                found[number] = likely(self.names, rows[number])
        return found

    @cached_property
    def errors(self) -> NDArray[np.object_]:
        """(texts,) what is wrong with each; None where nothing is."""
        found = np.full(len(self), None, np.object_)
        for number, says in self.problems.items():
            found[number] = says
        return found

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """(texts,) whether there is a result."""
        found = np.ones(len(self), np.bool_)
        found[list(self.problems)] = False
        return found

    def __getitem__(self, number: int) -> Prediction:
        """One text's result as an object."""
        number = range(len(self))[number]
        return next(self._predictions(range(number, number + 1)))

    def __iter__(self) -> Iterator[Prediction]:
        """All of them as objects."""
        return self._predictions(range(len(self)))

    def _predictions(self, numbers: range) -> Iterator[Prediction]:
        rows = slice(numbers.start, numbers.stop)
        kept, tokens, truncated = (each[rows].tolist() for each in (self.kept, self.tokens, self.truncated))
        fields = answers(self.head, self.names, self.outputs[rows])
        for place, number in enumerate(numbers):
            says = self.problems.get(number)
            answer: dict[str, Any] = fields[place] if says is None else {"error": says}
            counts = tuple(kept[place]) if kept[place] and kept[place][0] else ()
            yield Prediction(**answer, tokens=tokens[place], kept=counts, truncated=truncated[place])
