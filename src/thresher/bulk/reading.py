"""A file as parts of rows, each the same whenever and from wherever it is read."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.bulk.formats import SEPARATORS, Format
from thresher.bulk.streams import LONGEST_LINE, Lines, lines_of
from thresher.errors import DataError

PART_ROWS = 20_000
PART_BYTES = 32 * 2**20  # rows of long texts come in smaller parts, so that memory stays flat
OPEN_QUOTE = 1000  # lines that a quoted field may have: a quote that nobody closes must not take the rest of the file


@dataclass(frozen=True)
class Broken:
    """A row that cannot be read as one: what stands there, and why not."""

    text: str
    problem: str


@dataclass(frozen=True)
class Chunk:
    """The rows of one part: lines of JSON or text (bytes), fields of separated ones, a pyarrow table, or broken ones.

    `before` rows of the file come before it; it begins at `start` and ends at `end`: bytes of the unpacked text, of
    Parquet rows. `read` is how much of the file on the disk it took.
    """

    number: int
    before: int
    rows: Any
    start: int
    end: int
    read: int


@dataclass(frozen=True)
class Place:
    """Where the next part begins: its number, byte (of Parquet: row), and how many rows come before."""

    number: int = 0
    start: int = 0
    before: int = 0


def read_chunks(path: Path, format: Format, place: Place, *, part_rows: int = PART_ROWS) -> Iterator[Chunk]:
    """Parts from a place on. An empty file is one part without rows."""
    if format.kind == "parquet":
        from thresher.bulk.parquet import read_parquet

        yield from read_parquet(path, place, part_rows=part_rows, part_bytes=PART_BYTES)
        return
    with lines_of(path, format.packing, place.start) as lines:
        if format.kind in SEPARATORS:
            rows: Iterator[Any] = separated(lines, SEPARATORS[format.kind], header=place.start == 0)
        else:
            rows = _lines(lines, blank=format.kind == "txt")
        yield from _parts(rows, lines, place, part_rows)


def _parts(rows: Iterator[Any], lines: Lines, place: Place, part_rows: int) -> Iterator[Chunk]:
    number, start, before, read = place.number, place.start, place.before, lines.read
    found: list[Any] = []
    for row, end in rows:
        found.append(row)
        if len(found) >= part_rows or end - start >= PART_BYTES:
            yield Chunk(number, before, found, start, end, lines.read - read)
            number, before, start, read, found = number + 1, before + len(found), end, lines.read, []
    if found or number == 0:
        yield Chunk(number, before, found, start, lines.place, lines.read - read)


def _lines(lines: Lines, *, blank: bool) -> Iterator[tuple[bytes | Broken, int]]:
    """Each line and where it ends. Blank ones are no rows of JSON, but they are rows of plain text."""
    for line in lines:
        if len(line) >= LONGEST_LINE:
            yield too_long(line), lines.place
        elif blank or line.strip():
            yield line, lines.place


def too_long(line: bytes) -> Broken:
    return Broken(decoded(line[:1000])[0], f"the line has more than {LONGEST_LINE:,} bytes; cut it into shorter ones")


def decoded(line: bytes) -> tuple[str, str | None]:
    """The text of some bytes, and what is wrong with them; what is not UTF-8 is written out."""
    try:
        return line.decode("utf-8"), None
    except UnicodeDecodeError as error:
        problem = f"the row has the byte 0x{line[error.start]:02x}, which is not UTF-8; save it as UTF-8"
        return line.decode("utf-8", errors="backslashreplace"), problem


class _Unclosed(Exception):
    """A quoted field has more lines than any should have."""


class _Feed:
    """Lines for a csv reader, which takes as many as a row has; what a broken row took may be given back."""

    def __init__(self, lines: Lines) -> None:
        self._lines = iter(self._placed(lines))
        self._again: list[tuple[bytes, int]] = []
        self.begin_row()

    def begin_row(self) -> None:
        self.taken: list[tuple[bytes, int]] = []  # of the row that is being read, each with the byte that it ends at
        self._held = 0  # bytes of them

    @staticmethod
    def _placed(lines: Lines) -> Iterator[tuple[bytes, int]]:
        for line in lines:
            yield line, lines.place

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        if len(self.taken) >= OPEN_QUOTE or self._held > LONGEST_LINE:
            raise _Unclosed
        line = self._again.pop() if self._again else next(self._lines)
        self.taken.append(line)
        self._held += len(line[0])
        return decoded(line[0])[0]

    def keep_first(self) -> None:
        """Only the first line counts as taken; the others will be given again."""
        self._again += reversed(self.taken[1:])
        del self.taken[1:]


def separated(lines: Lines, separator: str, *, header: bool) -> Iterator[tuple[list[str] | Broken, int]]:
    """Each row's fields and where it ends, without the header. A broken row harms no other."""
    feed = _Feed(lines)
    reader = _reader(feed, separator)
    while True:
        feed.begin_row()
        try:
            with _long_fields():
                row: list[str] | Broken = next(reader)
        except StopIteration:
            return
        except (csv.Error, _Unclosed) as error:
            unclosed = isinstance(error, _Unclosed) or "unexpected end" in str(error)
            if unclosed:
                feed.keep_first()
                reader = _reader(feed, separator)
            problem = "a quote is opened and not closed" if unclosed else f"the row is malformed: {error}"
            row = Broken(_text_of(feed), f"{problem}; double the quotes inside quoted fields")
        end = feed.taken[-1][1]
        bad = next((why for line, _ in feed.taken if (why := decoded(line)[1])), None)
        if bad is not None:
            row = Broken(_text_of(feed), bad)
        elif any(len(line) >= LONGEST_LINE for line, _ in feed.taken):
            row = too_long(feed.taken[0][0])
        if not row:
            continue
        if header:
            header = False
            continue
        yield row, end


def _text_of(feed: _Feed) -> str:
    return "".join(decoded(line)[0] for line, _ in feed.taken)[: 2**20].rstrip("\r\n")


def _reader(feed: _Feed, separator: str) -> Any:
    return csv.reader(feed, delimiter=separator, strict=True)


@contextmanager
def _long_fields() -> Iterator[None]:
    """The module's 131,072 characters are fewer than some documents have."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def read_header(path: Path, format: Format) -> list[str]:
    """The columns of a separated file."""
    with lines_of(path, format.packing) as lines, _long_fields():
        reader = csv.reader((decoded(line)[0] for line in lines), delimiter=SEPARATORS[format.kind], strict=True)
        try:
            names = next((fields for fields in reader if fields), [])
        except csv.Error as error:
            raise DataError(
                f"{path} has a malformed header: {error}; double the quotes inside quoted fields"
            ) from error
    if not names:
        raise DataError(f"{path} is empty; its first line must name the columns")
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns named '{name}'; column names must differ")
    return names
