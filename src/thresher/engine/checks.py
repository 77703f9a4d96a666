"""What callers give an engine, checked by kind and range before anything is computed with it."""

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

from thresher.errors import ConfigError, DataError, ModelError
from thresher.text import is_blank, shown

# What an engine is asked for by what its head gives; of all others, predictions.
METHODS = {
    "score": "score(pairs) or rank(query, documents)",
    "embedding": "embed(texts)",
    "span": "answer(question, context)",
    "tags": "tag(texts)",
}
MOST_AT_ONCE = 1024  # threads, or processes
SHORTEST = 4  # a text of one token and its special tokens, with a separator to spare


def other_head(means: str, asked: str) -> ModelError:
    """What is said where a method is called that the model's head does not serve."""
    instead = METHODS.get(means, "predict(texts)")
    return ModelError(f"the model's head gives {means}, which {asked} does not serve; use {instead}")


def check_scores(means: str, asked: str) -> None:
    """Refuse a head that is no reranker's; one number may be one, which few folders say."""
    if means == "value":
        raise ModelError(
            "the model's folder does not say that its one output is a reranker's score; where it is one, say "
            "Engine.load(..., means='score'), and else use predict(texts), which gives the number"
        )
    if means != "score":
        raise other_head(means, asked)


def check_window(window: Any) -> int:
    """How many texts are read at a time."""
    return whole_number("window", window, low=1, unit="texts")


def check_max_tokens(max_tokens: Any) -> int:
    """How many tokens a batch may have."""
    return whole_number("max_tokens", max_tokens, low=1, unit="tokens")


def check_max_length(max_length: Any) -> int | None:
    """The longest text in tokens, or None for the longest there is."""
    return None if max_length is None else whole_number("max_length", max_length, low=SHORTEST, unit="tokens")


def check_sizes(sizes: Any) -> list[tuple[int, int]]:
    """Batches to prepare for: (texts, tokens of each)."""
    try:
        pairs = [tuple(size) for size in sizes]
    except TypeError:
        pairs = [()]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"sizes = {shown(sizes)} are not pairs; give (texts, tokens of each) for every batch")
    counted = [
        (whole_number("sizes", a, low=1, unit="texts"), whole_number("sizes", b, low=1, unit="tokens"))
        for a, b in pairs
    ]
    return counted


def check_threads(threads: Any) -> int | None:
    """How many threads compute, or None for as many as there are."""
    return (
        None if threads is None else _not_too_many("threads", whole_number("threads", threads, low=1, unit="threads"))
    )


def check_workers(workers: Any) -> int | None:
    """How many processes tokenize, 0 for none, or None for as many as pay."""
    if workers is None:
        return None
    return _not_too_many("workers", whole_number("workers", workers, low=0, unit="processes"))


def _not_too_many(name: str, number: int) -> int:
    """No machine has use for more; a million threads end the process, before anybody can say why."""
    if number > MOST_AT_ONCE:
        raise ConfigError(f"{name} = {shown(number)} is above {MOST_AT_ONCE}, the largest allowed value")
    return number


def check_top_k(top_k: Any) -> int | None:
    """How many documents a ranking has, or None for all."""
    return None if top_k is None else whole_number("top_k", top_k, low=1, unit="documents")


def check_dimensions(dimensions: Any, width: int) -> int | None:
    """To how many numbers vectors of this width are cut, or None for all."""
    if dimensions is None:
        return None
    number = whole_number("dimensions", dimensions, low=1, unit="numbers")
    if number > width:
        raise ConfigError(f"dimensions = {number} is above {width}, the numbers of the model's vectors")
    return number


def check_ids(rows: Any) -> list[list[int]]:
    """Texts as lists of token ids, of any kind of whole number."""
    found = []
    for number, row in enumerate(check_items(rows, name="rows")):
        try:
            found.append([operator.index(one) for one in row])
        except TypeError as error:
            raise ConfigError(f"row {number}, {shown(row)}, is no list of token ids; give whole numbers") from error
    return found


def check_query(query: Any) -> str:
    """What documents are ranked for."""
    if not isinstance(query, str):
        raise DataError(f"the query {shown(query)} is of type {type(query).__name__}; give a string")
    if is_blank(query):
        raise DataError(f"the query {query!r} is empty; give at least one word")
    return query


def check_items(items: Any, *, name: str = "texts") -> Any:
    """Many texts, in anything that can be gone through in an order of its own.

    One text is refused, which would count as its letters, and a dictionary, which would count as its keys.
    """
    if isinstance(items, str | bytes):
        raise ConfigError(f"a single text was given as {name}; give a list of texts")
    if isinstance(items, Mapping | Set) or not (isinstance(items, Iterable) or hasattr(items, "__getitem__")):
        raise ConfigError(f"{name} = {shown(items)} is of type {type(items).__name__}; give a list of texts")
    return items


def check_prompt(prompt: Any) -> str:
    """What stands before every text."""
    if not isinstance(prompt, str):
        raise ConfigError(f"prompt = {shown(prompt)} is of type {type(prompt).__name__}; give a string")
    return prompt


def check_dtype_name(dtype: Any) -> str:
    """The name of an arithmetic; whether it is a known one depends on the backend."""
    if not isinstance(dtype, str):
        raise ConfigError(
            f"dtype = {shown(dtype)} is of type {type(dtype).__name__}; give a name such as 'auto' or 'fp32'"
        )
    return dtype


def whole_number(name: str, value: Any, *, low: int, unit: str) -> int:
    """A whole number of at least `low`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # numpy's and torch's whole numbers, too
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(f"{name} = {shown(value)} is of type {type(value).__name__}; give a whole number of {unit}")
    if number < low:
        raise ConfigError(f"{name} = {shown(number)} is below {low}, the smallest allowed value")
    return number
