"""What an engine says of many texts, as columns. Whole files use an engine only through `answer`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from thresher.bulk.rows import Item
from thresher.engine.predictions import cut_vectors

if TYPE_CHECKING:
    from thresher.engine.answers import Answers as Found
    from thresher.engine.engine import Engine

HEARD_EVERY = 64  # texts
COUNTS = {"tokens": "count", "kept": "number", "truncated": "bool"}
WINDOWED = {"tokens": "count", "kept": "number", "windows": "count"}  # of texts that are read in windows, never cut
# What is written for each meaning of outputs, and in which kind of column.
RESULTS: dict[str, dict[str, str]] = {
    "classes": {"label": "string", "probability": "number", "probabilities": "numbers", **COUNTS},
    "labels": {"labels": "strings", "probabilities": "numbers", **COUNTS},
    "value": {"value": "number", **COUNTS},
    "score": {"score": "number", **COUNTS},
    "embedding": {"embedding": "vector", **COUNTS},
    "span": {
        **{"answer": "string", "start": "count", "end": "count"},
        **{"score": "number", "null_score": "number", "probability": "number"},
        **WINDOWED,
    },
    "tags": {"entities": "entities", **WINDOWED},
}


@dataclass
class Answers:
    """A list for each column of RESULTS, None where there is an error, and the errors; all in the items' order.

    `tokens` is how many were read, `shares` the sum over good texts of the share of tokens that layers pass on.
    """

    columns: dict[str, list[Any]]
    errors: list[str | None]
    tokens: int = 0
    shares: float = 0.0
    truncated: int = 0


def answer(
    engine: "Engine", items: Sequence[Item], heard: Callable[[int], None], *, dimensions: int | None = None
) -> Answers:
    """Answers to all items; one that cannot be answered has an error. They depend on these items only.

    `heard` is told now and then how many are answered. `dimensions`: of embeddings, None for all.
    """
    if engine.head.reads == "tokens":
        return _of_tokens(engine, items, heard)
    found = Answers({name: [] for name in RESULTS[engine.head.means]}, [])
    for part in engine.stream_arrays(items):
        heard(len(found.errors))
        good = part.good
        shares = _shares(part)
        for name, values in _columns(part, shares, dimensions).items():
            found.columns[name] += [value if there else None for value, there in zip(values, good, strict=True)]
        found.errors += part.errors.tolist()
        found.tokens += int(part.tokens[good].sum())
        found.shares += float(shares[good].sum())
        found.truncated += int(part.truncated[good].sum())
    return found


def _of_tokens(engine: "Engine", items: Sequence[Any], heard: Callable[[int], None]) -> Answers:
    """The same for heads that read every token: answers to questions, or entities."""
    names = RESULTS[engine.head.means]
    found = Answers({name: [] for name in names}, [])
    answered: Iterator[Any] = engine.answer_stream(items) if engine.head.means == "span" else engine.tag_stream(items)
    for one in answered:
        if len(found.errors) % HEARD_EVERY == 0:
            heard(len(found.errors))
        share = sum(one.kept) / (len(one.kept) * one.tokens) if one.kept else 1.0
        known = {"tokens": one.tokens, "kept": round(share, 4), "windows": one.windows}
        if engine.head.means == "span":
            known |= {"answer": one.text, "start": one.start, "end": one.end}
            known |= {name: getattr(one, name) for name in ("score", "null_score", "probability")}
        else:
            known["entities"] = [asdict(entity) for entity in one.entities]
        for name in names:
            found.columns[name].append(known[name] if one.error is None else None)
        found.errors.append(one.error)
        if one.error is None:
            found.tokens, found.shares = found.tokens + one.tokens, found.shares + share
    return found


def _shares(part: "Found") -> Any:
    """(texts,) the share of its tokens that a layer passes on, in the mean over the layers.

    The last layer is left out where nobody reads more than first tokens: it passes on these, whatever was learned.
    """
    kept = part.kept if part.head.restores else part.kept[:, :-1]
    whole = kept.shape[1] * part.tokens
    return np.divide(kept.sum(axis=1), whole, out=np.ones(len(part)), where=whole > 0)


def _columns(part: "Found", shares: Any, dimensions: int | None) -> dict[str, Sequence[Any]]:
    """What RESULTS names, for every text; where it has an error, anything."""
    means = part.head.means
    found: dict[str, Sequence[Any]] = {}
    if means == "embedding":
        found["embedding"] = list(cut_vectors(part.head, part.outputs, dimensions))
    elif means in ("value", "score"):
        found[means] = part.values.tolist()
    else:
        rows = part.probabilities.tolist()
        found["probabilities"] = [dict(zip(part.names, row, strict=True)) for row in rows]
        if means == "classes":
            found["label"], found["probability"] = part.labels.tolist(), [max(row) for row in rows]
        else:
            found["labels"] = [list(labels or ()) for labels in part.labels.tolist()]
    counts = {"tokens": part.tokens.tolist(), "kept": shares.round(4).tolist(), "truncated": part.truncated.tolist()}
    return found | counts
