"""Splits by content: which rows are held out depends on their text alone, never on row order, seed or process."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from thresher.tasks.task import Example

SELECTION_SHARE = 0.1
SELECTION_AT_MOST = 2000
Row = TypeVar("Row")


def fingerprint(example: Example) -> bytes:
    """sha256 of text and pair. JSON keeps the two apart and escapes lone surrogates, which UTF-8 cannot encode."""
    return hashlib.sha256(json.dumps([example.text, example.pair]).encode("ascii")).digest()


def query_of(example: Example) -> bytes:
    """sha256 of the query of a reranker's row: its group, or the text where it has none."""
    text = example.text if example.group is None else example.group
    return hashlib.sha256(json.dumps(text).encode("ascii")).digest()


def hold_out(
    examples: Sequence[Example], *, share: float, at_most: int, key: Callable[[Example], bytes] = fingerprint
) -> tuple[list[Example], list[Example]]:
    """Split into (train, held): the rows with the smallest hashes are held, both sides keep the given order.

    `share` of the rows, no more than `at_most`, at least one. Rows with the same `key`, such as the same text and pair,
    stay together, so a group of copies that would overshoot is passed over. With fewer than two different rows nothing
    is held.
    """
    if not 0 < share < 1 or at_most < 1:
        raise ValueError(f"share = {share} must be between 0 and 1, at_most = {at_most} at least 1")
    digests = [key(example) for example in examples]
    copies = Counter(digests)
    wanted = min(at_most, max(1, round(share * len(examples))))
    held: set[bytes] = set()
    count = 0
    for digest in sorted(copies):
        # The last group always stays in train, whatever the share.
        if count + copies[digest] <= wanted and len(held) + 1 < len(copies):
            held.add(digest)
            count += copies[digest]
    if not held and len(copies) > 1:
        # Every group of copies is larger than wanted: take the smallest rather than nothing.
        held.add(min(copies, key=lambda digest: (copies[digest], digest)))
    pairs = list(zip(examples, digests, strict=True))
    return [row for row, digest in pairs if digest not in held], [row for row, digest in pairs if digest in held]


def hold_out_selection(
    train: Sequence[Example],
    tests: Iterable[Sequence[Example]],
    *,
    among: Sequence[Example] | None = None,
    share: float = SELECTION_SHARE,
    key: Callable[[Example], bytes] = fingerprint,
) -> tuple[list[Example], list[Example], int]:
    """Split into (train, selection, leaked), with no selection row in any of the test splits.

    `share` of the rows `among`, all of train if not given, are for selection; rows with the same `key` stay together.
    `leaked` counts training rows that also occur in a test split. They stay in train, as published data sets have
    them (6 in STS-B), but choosing a checkpoint on them would be choosing on the test.
    """
    tested = {key(row) for rows in tests for row in rows}
    digests = [key(row) for row in train]
    free = [row for row, digest in zip(train, digests, strict=True) if digest not in tested]
    some = free if among is None else [row for row in among if key(row) not in tested]
    _, selection = hold_out(some, share=share, at_most=SELECTION_AT_MOST, key=key)
    held = {key(row) for row in selection}
    kept = [row for row, digest in zip(train, digests, strict=True) if digest not in held]
    return kept, selection, len(train) - len(free)


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of the rows, evenly spread: files are often sorted."""
    count = min(count, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def scattered(rows: Iterable[Example], *, key: Callable[[Example], bytes] = fingerprint) -> list[Example]:
    """All rows by their hash, so that the first ones are a sample of all; those with the same `key` stay together."""
    return sorted(rows, key=key)


def leak_note(leaked: int) -> str:
    """The words a task's source adds about training rows that are also test rows."""
    verb, stays = ("occurs", "stays") if leaked == 1 else ("occur", "stay")
    return f"; {counted(leaked, 'training row')} also {verb} in the test rows and {stays} in training" if leaked else ""


def counted(number: int, noun: str) -> str:
    """'1 row', '2,000 rows'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
