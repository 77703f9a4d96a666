"""What an engine says of many texts, as columns. Whole files use an engine only through `answer`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thresher.bulk.rows import Item
from thresher.errors import DataError
from thresher.text import half_character, is_blank

if TYPE_CHECKING:
    from thresher.engine.engine import Engine
    from thresher.engine.predictions import Prediction

WINDOW = 1024  # texts that an embedding model gets at a time, and between two words on how far the work is
COUNTS = {"tokens": "count", "kept": "number", "truncated": "bool"}
# What is written for each meaning of outputs, and in which kind of column.
RESULTS: dict[str, dict[str, str]] = {
    "classes": {"label": "string", "probability": "number", "probabilities": "numbers", **COUNTS},
    "labels": {"labels": "strings", "probabilities": "numbers", **COUNTS},
    "value": {"value": "number", **COUNTS},
    "score": {"score": "number", **COUNTS},
    "embedding": {"embedding": "vector"},
}


@dataclass
class Answers:
    """A list for each column of RESULTS, None where there is an error, and the errors; all in the items' order.

    `tokens` is how many were read, `shares` the sum over good texts of the share of tokens that layers pass on.
    """

    columns: dict[str, list[Any]]
    errors: list[str | None]
    tokens: int = 0
    shares: float | None = 0.0
    truncated: int = 0


def answer(engine: "Engine", items: Sequence[Item], heard: Callable[[int], None]) -> Answers:
    """Answers to all items; one that cannot be answered has an error. They depend on these items only.

    `heard` is told now and then how many are answered.
    """
    if engine.head.means == "embedding":
        return _embedded(engine, items, heard)
    means, counted = engine.head.means, None if engine.head.restores else -1
    found = Answers({name: [] for name in RESULTS[means]}, [])
    for number, one in enumerate(engine.predict(items)):
        if number % WINDOW == 0:
            heard(number)
        found.errors.append(one.error)
        values: dict[str, Any] = {} if one.error else _values(one, means, counted)
        for name, column in found.columns.items():
            column.append(values.get(name))
        if values:
            found.tokens += one.tokens
            found.shares = (found.shares or 0.0) + values["kept"]
            found.truncated += one.truncated
    return found


def _values(one: "Prediction", means: str, counted: int | None) -> dict[str, Any]:
    # The last layer is left out where nobody reads more than first tokens: it passes on these, whatever was learned.
    kept = one.kept[:counted]
    share = sum(kept) / (len(kept) * one.tokens) if kept else 1.0
    values: dict[str, Any] = {"tokens": one.tokens, "kept": round(share, 4), "truncated": one.truncated}
    if means == "classes":
        values |= {"label": one.label, "probability": one.probability, "probabilities": one.probabilities}
    elif means == "labels":
        values |= {"labels": list(one.labels or ()), "probabilities": one.probabilities}
    else:
        values[means] = one.value
    return values


def _embedded(engine: "Engine", items: Sequence[Item], heard: Callable[[int], None]) -> Answers:
    vectors: list[Any] = []
    errors: list[str | None] = []
    for start in range(0, len(items), WINDOW):
        heard(start)
        window = items[start : start + WINDOW]
        problems = [_problem(item) for item in window]
        good = [item for item, problem in zip(window, problems, strict=True) if problem is None]
        found = iter(_each(engine, good))
        for problem in problems:
            vector, error = (None, problem) if problem else next(found)
            vectors.append(vector)
            errors.append(error)
    return Answers({"embedding": vectors}, errors, shares=None)


def _problem(item: Item) -> str | None:
    """What `embed` refuses, so that one text does not refuse all."""
    if not isinstance(item, str):
        return "an embedding model reads single texts, and was given a pair"
    if is_blank(item):
        return "the text is empty; give at least one word"
    if half_character(item) is not None:
        return "the text holds half a character (a lone surrogate), which no tokenizer can read; remove it"
    return None


def _each(engine: "Engine", texts: list[Any]) -> list[tuple[Any, str | None]]:
    """A vector or an error for each text; where one fails, its half is tried again without the other."""
    if not texts:
        return []
    try:
        return [(vector, None) for vector in engine.embed(texts)]
    except DataError as error:
        if len(texts) == 1:
            return [(None, re.sub(r"^item \d+: ", "", str(error)))]
    middle = len(texts) // 2
    return [*_each(engine, texts[:middle]), *_each(engine, texts[middle:])]
