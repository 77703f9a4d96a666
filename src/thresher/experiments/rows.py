"""Rows in and out of files, and choices among them that depend on their content alone."""

import argparse
import hashlib
import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from thresher.errors import DataError

Item = TypeVar("Item")
Row = dict[str, Any]


def read_rows(*places: Path) -> list[Row]:
    """Rows of a file of JSON lines, packed by xz, at the first of the places that has it."""
    for path in places:
        if path.is_file():
            with lzma.open(path, "rt", encoding="utf-8") as file:
                return [json.loads(line) for line in file]
    raise DataError(
        f"{' and '.join(map(str, places))}: no such file; see the page of the experiment for where it is from"
    )


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write JSON lines, packed; returns how many. The same rows give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with lzma.open(path, "wt", preset=9, encoding="utf-8") as file:  # 9: a document may come again far below
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def chosen(items: Sequence[Item], count: int, *, key: Callable[[Item], str], salt: str) -> list[Item]:
    """`count` of the items, by the hash of their key: the same ones wherever this runs, in the order of the hash."""
    return sorted(items, key=lambda item: digest(f"{salt}\n{key(item)}"))[:count]


def share_of(text: str, *, salt: str) -> float:
    """A number from 0 to 1 that only the text decides."""
    return int(digest(f"{salt}\n{text}")[:8], 16) / 16**8


def cut(text: str, words: int) -> str:
    """The first so many words."""
    return " ".join(text.split()[:words])


def chained(texts: Sequence[str], *, words: int) -> str:
    """Texts one after another, as long as they stay within so many words; at least the first."""
    taken: list[str] = []
    total = 0
    for text in texts:
        total += len(text.split())
        if taken and total > words:
            break
        taken.append(text)
    return cut(" ".join(taken), words)


def prepared_by_command(
    prepare: Callable[..., dict[str, int]],
    about: str | None,
    *,
    folders: Sequence[str] = ("data",),
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Prepare rows, and say how many; the folders with the data, and where rows go, are on the command line, and
    `numbers`, which have defaults."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in (*folders, "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=usual)
    given = vars(parser.parse_args())
    more = {name: given[name] for name in numbers}
    for name, count in prepare(*(given[folder] for folder in folders), given["out"], **more).items():
        print(f"{name}: {count:,}")
