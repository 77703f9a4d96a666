"""Whether a run is for pairs of texts, as its thresher.json remembers."""

from collections.abc import Mapping
from typing import Any

from thresher.errors import DataError


def means_of(manifest: Mapping[str, Any]) -> str | None:
    """What the run's outputs mean, where its description says so: those of the first versions do not."""
    head = manifest.get("head")
    means = head.get("means") if isinstance(head, dict) else None
    return means if isinstance(means, str) else None


def takes_pairs(manifest: Mapping[str, Any]) -> bool | None:
    """Whether the run is for pairs of texts; None where its description does not say.

    A trained run knows the columns of its task, one that was calibrated without labels what its texts were.
    """
    means = means_of(manifest)
    if means in ("score", "span", "embedding"):  # the first two read pairs; of an embedding's each text is read alone
        return None if means == "embedding" else True
    if means == "tags":
        return False
    task, free = manifest.get("task"), manifest.get("training_free")
    columns = task.get("columns") if isinstance(task, dict) else None
    if isinstance(columns, dict) and "pair" in columns:
        return bool(columns["pair"])
    texts = free.get("texts") if isinstance(free, dict) else None
    pairs = texts.get("pairs") if isinstance(texts, dict) else None
    return pairs if isinstance(pairs, bool) else None


def other_kind(manifest: Mapping[str, Any], *, given_pairs: bool) -> tuple[str, str] | None:
    """What the run is for and what it is given, where that is pairs of texts and single ones, or the other way."""
    pairs = takes_pairs(manifest)
    if pairs is None or pairs == given_pairs:
        return None
    return ("pairs of texts", "single texts") if pairs else ("single texts", "pairs of texts")


def check_pairs(manifest: Mapping[str, Any], *, given_pairs: bool, name: object) -> None:
    """Refuse inputs of the other kind: the model would answer with confidence, and know nothing. `name`: the run's."""
    if other := other_kind(manifest, given_pairs=given_pairs):
        own, given = other
        raise DataError(f"{name} is for {own}, but was given {given}; give it {own}, as it was trained on")
