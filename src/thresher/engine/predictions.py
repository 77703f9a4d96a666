"""What outputs mean to a user: labels and probabilities, values, scores, or the vector itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import Head

Outputs = NDArray[np.float32]  # (texts, outputs)
LIKELY = 0.5  # a label of several is given from this probability on


@dataclass(frozen=True)
class Prediction:
    """One text's result, or why there is none.

    Classification gives `label`, its `probability`, and `probabilities` of all classes by their names. Where a text may
    have several labels, `labels` are those of at least one half, the likeliest first. Regression gives `value`; a
    reranker's is its score, as its folder has it. `tokens` is the text's length and `kept` how many of them each layer
    passed on.
    """

    label: str | None = None
    probability: float | None = None
    value: float | None = None
    tokens: int = 0
    kept: tuple[int, ...] = ()
    truncated: bool = False
    error: str | None = None
    labels: tuple[str, ...] | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """A document's place in the list it was given in, and its score; whether it was too long, and cut."""

    index: int
    score: float
    truncated: bool = False


def sigmoid(logits: Outputs) -> Outputs:
    """1 / (1 + e^-x), without overflow at either end."""
    with np.errstate(invalid="ignore"):  # as in softmax
        return np.exp(-np.logaddexp(np.float32(0), -logits), dtype=np.float32)


def softmax(logits: Outputs) -> Outputs:
    """Over the last dimension."""
    with np.errstate(invalid="ignore"):  # what is not a number gets an error, and no answer
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    found: Outputs = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return found


def numbers(head: Head, outputs: Outputs) -> Outputs:
    """(texts,) what one output (texts, 1) says: a value, or a reranker's score after the model's own activation."""
    found: Outputs = outputs[:, 0]
    return sigmoid(found) if head.means == "score" and head.activation == "sigmoid" else found


def cut_vectors(head: Head, vectors: Outputs, dimensions: int | None) -> Outputs:
    """(texts, dimensions) of embeddings (texts, width), of length 1 again where the model's are."""
    found = vectors[:, :dimensions]
    if dimensions is None or not head.normalised:
        return found
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    scaled: Outputs = found / np.maximum(lengths, np.float32(1e-12))
    return scaled


def answers(head: Head, names: Sequence[str], outputs: Outputs) -> list[dict[str, Any]]:
    """What a Prediction says of each row of outputs (texts, outputs); an embedding says nothing beside itself.

    names: of the classes.
    """
    if head.means == "embedding":
        return [{}] * len(outputs)
    if head.means == "classes":
        return [_one(names, row) for row in softmax(outputs).tolist()]
    if head.means == "labels":
        return [_several(names, row) for row in sigmoid(outputs).tolist()]
    return [{"value": value} for value in numbers(head, outputs).tolist()]


def _one(names: Sequence[str], row: list[float]) -> dict[str, Any]:
    best = max(range(len(row)), key=row.__getitem__)
    return {"label": names[best], "probability": row[best], "probabilities": dict(zip(names, row, strict=True))}


def likely(names: Sequence[str], row: list[float]) -> tuple[str, ...]:
    """The names of at least one half, the likeliest first. row: (classes,) probabilities."""
    order = sorted(range(len(row)), key=lambda i: -row[i])
    return tuple(names[i] for i in order if row[i] >= LIKELY)


def _several(names: Sequence[str], row: list[float]) -> dict[str, Any]:
    return {"labels": likely(names, row), "probabilities": dict(zip(names, row, strict=True))}
