"""Rows from CSV, TSV, JSON, CoNLL and Parquet files, with errors that name the file and the place."""

import csv
import gzip
import importlib
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import DataError
from thresher.tasks.documents import COLUMN_ENDINGS, column_rows, json_rows
from thresher.workplace import path_problem

FORMATS = ".csv, .tsv, .jsonl, .json, .conll (each also with .gz or .xz) or .parquet"


@dataclass(frozen=True)
class Table:
    """A file's rows. `lines` is where each row starts in a text file; Parquet has none."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    lines: list[int] | None

    def where(self, index: int) -> str:
        """The words by which a person finds a row: file, row (from 1, without the header) and line."""
        line = f" (line {self.lines[index]})" if self.lines is not None else ""
        return f"{self.path}, row {index + 1}{line}"

    def value(self, index: int, column: str) -> Any:
        """One cell; JSON lines may lack a column in single rows, and that is an error here."""
        row = self.rows[index]
        if column not in row:
            raise DataError(f"{self.where(index)} has no '{column}'; it has: {', '.join(row) or 'nothing'}")
        return row[column]

    def require(self, column: str, *, option: str | None = None) -> None:
        """Check before reading any row that the column exists at all; `option` is the command's way to name another."""
        if column not in self.columns:
            way = "" if option is None else f"; say which with {option}"
            raise DataError(
                f"{self.path} has no column '{column}'; available columns: {', '.join(map(repr, self.columns))}{way}"
            )


def read_table(path: Path) -> Table:
    """Read a whole file; its format is chosen by its extension."""
    if problem := path_problem(path):
        raise DataError(f"{str(path)[:80]!r} cannot be a path: {problem}; give the path of a data file")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a data file")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in (".gz", ".xz") else ""
    kind = suffixes[-1] if suffixes else ""
    parse = _PARSERS.get(kind)
    if parse is None and (kind != ".parquet" or packing):
        raise DataError(f"{path} has an unknown extension; it must be {FORMATS}")
    if not path.is_file():
        raise DataError(f"{path} does not exist; give the path of a data file")
    table = _read_parquet(path) if parse is None else parse(path, _read_text(path, packing))
    if not table.rows:
        raise DataError(f"{path} has no rows; give a file with at least one row of data")
    return table


def _read_text(path: Path, packing: str) -> str:
    try:
        data = path.read_bytes()
        if packing:
            data = gzip.decompress(data) if packing == ".gz" else lzma.decompress(data)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; check that the file is complete and readable") from error
    try:
        # utf-8-sig: spreadsheets put a byte order mark first, which would become part of the first column's name.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = f"0x{error.object[error.start]:02x}"
        raise DataError(f"{path}, line {line} has the byte {byte}, which is not UTF-8; save it as UTF-8") from error


def _parse_json_lines(path: Path, text: str) -> Table:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    # Only "\n" ends a line: splitlines would also cut at U+2028 and others that JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, row {len(rows) + 1} (line {number})"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not valid JSON: {error}; each line must be one JSON object") from error
        if not isinstance(row, dict):
            raise DataError(f"{where} is a JSON {type(row).__name__}; each line must be one JSON object")
        rows.append(row)
        lines.append(number)
    return _table(path, rows, lines)


def _table(path: Path, rows: list[dict[str, Any]], lines: list[int] | None) -> Table:
    return Table(path, tuple(dict.fromkeys(name for row in rows for name in row)), rows, lines)


def _parse_separated(path: Path, text: str, separator: str) -> Table:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    header: list[str] = []
    start = 1
    limit = csv.field_size_limit(sys.maxsize)  # the module's 131,072 characters are fewer than some documents have
    try:
        for fields in reader:
            line, start = start, reader.line_num + 1
            if not fields:
                continue
            if not header:
                header = fields
                _check_header(path, header)
                continue
            if len(fields) != len(header):
                other = next((mark for mark in ";\t|," if len(header) == 1 and mark in header[0]), None)
                advice = "quote fields that contain the separator, quotes or line breaks"
                advice = advice if other is None else f"the separator seems to be {other!r}, not {separator!r}"
                counts = f"has {len(fields)} fields, the header has {len(header)}"
                raise DataError(f"{path}, row {len(rows) + 1} (line {line}) {counts}; {advice}")
            rows.append(dict(zip(header, fields, strict=True)))
            lines.append(line)
    except csv.Error as error:
        raise DataError(
            f"{path}, row {len(rows) + 1} (line {start}) is malformed: {error}; "
            "double the quotes inside quoted fields, or save the data as .jsonl"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return Table(path, tuple(header), rows, lines)


def _check_header(path: Path, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns named '{name}'; column names must differ")


def _read_parquet(path: Path) -> Table:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path} needs the package pyarrow to be read; "
            'run: pip install "thresher[parquet]", or save the data as .csv or .jsonl'
        ) from error
    try:
        data = parquet.ParquetFile(path).read()
        names = list(data.column_names)
        _check_header(path, names)
        return Table(path, tuple(names), data.to_pylist(), None)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as Parquet: {reason}; check that the file is complete") from error


_PARSERS: dict[str, Callable[[Path, str], Table]] = {
    ".csv": lambda path, text: _parse_separated(path, text, ","),
    ".tsv": lambda path, text: _parse_separated(path, text, "\t"),
    ".jsonl": _parse_json_lines,
    ".ndjson": _parse_json_lines,
    ".json": lambda path, text: _table(path, *json_rows(path, text)),
    **{ending: lambda path, text: _table(path, *column_rows(path, text)) for ending in COLUMN_ENDINGS},
}
