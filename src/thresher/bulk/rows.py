"""From what a file has to what an engine reads: a row's columns, its text or pair, or why there is none."""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thresher.bulk.reading import Broken, Chunk, decoded

Item = str | tuple[str, str]


@dataclass(frozen=True)
class Columns:
    """Which columns are read: the text, the pair's second text, and one that every row must have filled."""

    text: str = "text"
    pair: str | None = None
    id: str | None = None

    def names(self) -> list[str]:
        return [name for name in (self.text, self.pair, self.id) if name is not None]


@dataclass(frozen=True)
class Row:
    """`values` are its columns, `line` the JSON they stand in, if it is a line of JSON; `item` or `error` is there."""

    values: Mapping[str, Any]
    line: str | None
    item: Item | None
    error: str | None


def parse_chunk(
    chunk: Chunk, kind: str, columns: Columns, *, header: list[str], taken: frozenset[str]
) -> Iterator[Row]:
    """The rows of a part of a file of some kind. `header`: its columns, where it has some; `taken`: names that results
    will have, which JSON lines must not have."""
    if kind == "parquet":
        yield from (_checked(values, None, columns) for values in _table_rows(chunk.rows))
        return
    for raw in chunk.rows:
        if isinstance(raw, Broken):
            yield Row({columns.text: raw.text}, None, None, raw.problem)
        elif kind == "jsonl":
            yield _json_row(raw, columns, taken)
        elif kind == "txt":
            yield _text_row(raw, columns)
        else:
            yield _separated_row(raw, columns, header)


def _table_rows(table: Any) -> Iterator[dict[str, Any]]:
    """A table's rows; of one with text that is not UTF-8, which files may hold unchecked, nothing is read."""
    try:
        yield from table.to_pylist()
    except UnicodeDecodeError:
        for number in range(table.num_rows):
            try:
                yield from table.slice(number, 1).to_pylist()
            except UnicodeDecodeError:
                yield {}


def _json_row(raw: bytes, columns: Columns, taken: frozenset[str]) -> Row:
    text, problem = decoded(raw.strip())
    values: Any = None
    if problem is None:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = f"the line is not valid JSON: {error}"
        if problem is None and not isinstance(values, dict):
            problem = f"the line is a JSON {type(values).__name__}; each line must be one JSON object"
        elif problem is None and not taken.isdisjoint(values):
            name = sorted(taken.intersection(values))[0]
            problem = f"the row has a column '{name}' of its own, which results would replace; give a --prefix"
    if problem is not None:
        return Row({columns.text: text}, None, None, problem)
    return _checked(values, text, columns)


def _text_row(raw: bytes, columns: Columns) -> Row:
    text, problem = decoded(raw.rstrip(b"\r\n"))
    if problem is not None:
        return Row({columns.text: text}, None, None, problem)
    if columns.pair is None:
        return _checked({columns.text: text}, None, columns)
    first, tab, second = text.partition("\t")
    return _checked({columns.text: first, columns.pair: second} if tab else {columns.text: first}, None, columns)


def _separated_row(fields: list[str], columns: Columns, header: list[str]) -> Row:
    if len(fields) != len(header):
        problem = f"the row has {len(fields)} fields, the header has {len(header)}"
        return Row({columns.text: ",".join(fields)}, None, None, problem)
    return _checked(dict(zip(header, fields, strict=True)), None, columns)


def _checked(values: Mapping[str, Any], line: str | None, columns: Columns) -> Row:
    """What the engine cannot say of a row: that a field is missing, or is no text."""
    texts = []
    for name in (columns.text, columns.pair):
        if name is None:
            continue
        if (value := values.get(name)) is None:
            return Row(values, line, None, f"the row has no '{name}'")
        if not isinstance(value, str):
            return Row(values, line, None, f"'{name}' is of type {type(value).__name__}; it must be a string")
        texts.append(value)
    if columns.id is not None and values.get(columns.id) in (None, ""):
        return Row(values, line, None, f"the row has no '{columns.id}', which --id-column asks for")
    return Row(values, line, texts[0] if len(texts) == 1 else (texts[0], texts[1]), None)


def as_json(value: Any) -> Any:
    """What JSON has no word for, as text; numbers that are none are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(name): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def as_cell(value: Any) -> str:
    """A cell of a separated file: text and dates as they are, nothing for null, the rest as JSON writes it."""
    value = value if isinstance(value, str) else as_json(value)
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def kind_of(value: Any) -> str | None:
    """The kind of column that could hold a value of JSON; None for null, which every one can."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def wider(one: str | None, other: str | None) -> str | None:
    """The kind that holds both; text holds everything."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    return "double" if {one, other} == {"int64", "double"} else "string"


def as_kind(value: Any, kind: str) -> Any:
    """A value in a column of a kind that `kind_of` and `wider` found for it."""
    if value is None:
        return None
    if kind == "string":
        return as_cell(value).encode("utf-8", errors="backslashreplace").decode("utf-8")  # half characters, written out
    return float(value) if kind == "double" else value
