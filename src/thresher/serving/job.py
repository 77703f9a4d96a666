"""One request's texts on their way through the queue, to the engine and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from thresher.engine.answers import Answers
from thresher.engine.token_answers import TokenAnswers
from thresher.serving.errors import ServingError
from thresher.tokenizing.tokens import Tokens


@dataclass(eq=False)
class Job:
    """All texts of a request are answered, or none. Times are of the queue's clock; `degrade`: whether a dial above
    the run's own is allowed. `ended` is called once, by whatever thread ends it."""

    tokens: Tokens
    arrived: float
    deadline: float
    degrade: bool = True
    ended: Callable[["Job"], None] = lambda job: None
    began: float | None = None  # when its first text was launched
    finished: float | None = None
    dials: set[float] = field(default_factory=set)
    error: ServingError | None = None
    over: bool = False
    waiting: int = 0  # tokens that are in the queue
    _parts: list[tuple[list[int], Answers | TokenAnswers]] = field(default_factory=list)
    _missing: int = 0

    def __post_init__(self) -> None:
        self.waiting, self._missing = self.tokens.total, len(self.tokens)

    def add(self, numbers: list[int], answers: Answers | TokenAnswers) -> bool:
        """Some texts, by their numbers in the request, are answered; whether all are now."""
        self._parts.append((numbers, answers))
        self._missing -= len(numbers)
        return self._missing == 0

    def answers(self) -> Any:
        """All of them, in the request's order: Answers, or TokenAnswers of a head that reads every token."""
        if len(self._parts) == 1 and self._parts[0][0] == list(range(len(self.tokens))):
            return self._parts[0][1]
        order = np.argsort([number for numbers, _ in self._parts for number in numbers])
        parts: list[Any] = [part for _, part in self._parts]
        return type(parts[0]).joined(parts).take(order)


class Waiting(NamedTuple):
    """A text in the queue: by when it should be computed, and in the order of arrival where that is the same. No two
    have the same serial, so that nothing after it is compared."""

    due: float
    serial: int
    job: Job
    number: int
    length: int


def tokens_of(texts: Sequence[Waiting]) -> Tokens:
    """Of all these, in their order; neighbours of one request are taken at once."""
    parts = []
    for job, group in groupby(texts, key=attrgetter("job")):
        numbers = [text.number for text in group]
        first, end = numbers[0], numbers[0] + len(numbers)
        alike = numbers == list(range(first, end))
        parts.append(job.tokens.between(first, end) if alike else job.tokens.take(numbers))
    return Tokens.joined(parts)
