"""A part of the output as bytes: the input's columns as they were, and the results beside them."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thresher.bulk.answers import Answers
from thresher.bulk.formats import SEPARATORS, Format
from thresher.bulk.rows import Row, as_cell, as_json, as_kind
from thresher.bulk.streams import packed

ERROR = "error"


@dataclass(frozen=True)
class Layout:
    """What the output of a shard looks like. `inputs` are the input's columns with their kinds, where they are known;
    lines of JSON have their own. `results` are columns of ours with their kinds; `width` is of embeddings."""

    format: Format
    inputs: Mapping[str, str]
    results: Mapping[str, str]
    prefix: str = ""
    width: int = 0

    def names(self) -> list[str]:
        """What results are called, the error last."""
        return [self.prefix + name for name in (*self.results, ERROR)]


def render(layout: Layout, rows: Sequence[Row], answers: Answers, *, table: Any, first: bool) -> bytes:
    """A part as bytes. answers: to the rows that have an item. table: the part as Parquet had it, or None; first: it is
    the file's first part, which has the header."""
    columns, errors = _spread(layout, rows, answers)
    kind, name = layout.format.kind, f"the output format {layout.format}"
    if kind == "parquet":
        return _parquet(layout, rows, columns, errors, table, name)
    if kind == "jsonl":
        text = _json_lines(layout, rows, columns, errors)
    else:
        text = _separated(layout, rows, columns, errors, first=first)
    return packed(text.encode("utf-8", errors="backslashreplace"), layout.format.packing, name)


def _spread(layout: Layout, rows: Sequence[Row], answers: Answers) -> tuple[dict[str, list[Any]], list[str | None]]:
    """Results and errors of all rows, those included that the engine never saw."""
    places = [i for i, row in enumerate(rows) if row.item is not None]
    errors = [row.error for row in rows]
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in layout.results}
    for place, error in zip(places, answers.errors, strict=True):
        errors[place] = error and error.encode("utf-8", errors="backslashreplace").decode("utf-8")
    for name, column in columns.items():
        for place, value in zip(places, answers.columns[name], strict=True):
            column[place] = value
    return columns, errors


def _number(value: float) -> str:
    """A float32 in as few digits as bring it back exactly."""
    return repr(float(f"{value:.9g}"))


def _texts(column: Sequence[Any], kind: str) -> list[str]:
    """A column's values as JSON writes them; by hand, which is quicker than json.dumps for every row."""
    if kind == "number":
        return ["null" if value is None else _number(value) for value in column]
    if kind == "bool":
        return ["null" if value is None else "true" if value else "false" for value in column]
    if kind == "numbers":
        names: dict[str, str] = _Quoted()
        return [
            "null"
            if value is None
            else "{" + ", ".join([f"{names[name]}: {_number(one)}" for name, one in value.items()]) + "}"
            for value in column
        ]
    if kind == "vector":
        return ["null" if value is None else "[" + ", ".join(map(_number, value.tolist())) + "]" for value in column]
    if kind == "string":
        quoted = _Quoted()
        return ["null" if value is None else quoted[value] for value in column]
    return [json.dumps(value, ensure_ascii=False) for value in column]


class _Quoted(dict[str, str]):
    """Texts as JSON writes them, each written once: labels and errors come again and again."""

    def __missing__(self, text: str) -> str:
        found = json.dumps(text, ensure_ascii=False)
        if len(self) < 1000:
            self[text] = found
        return found


def _json_lines(
    layout: Layout, rows: Sequence[Row], columns: Mapping[str, list[Any]], errors: Sequence[str | None]
) -> str:
    lines = []
    kinds, names = [*layout.results.values(), "string"], layout.names()
    texts = [_texts(column, kind) for column, kind in zip((*columns.values(), errors), kinds, strict=True)]
    form = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: ".replace("%", "%%") + "%s" for name in names)
    for row, values in zip(rows, zip(*texts, strict=True), strict=True):
        # The line itself stays as it is: numbers, their digits and the order of columns too.
        before = (row.line or json.dumps(as_json(dict(row.values)), ensure_ascii=False))[:-1].rstrip()
        lines.append(f"{before}{'' if before == '{' else ', '}{form % values}}}\n")
    return "".join(lines)


def _separated(
    layout: Layout,
    rows: Sequence[Row],
    columns: Mapping[str, list[Any]],
    errors: Sequence[str | None],
    *,
    first: bool,
) -> str:
    text = _Lines()
    writer = csv.writer(text, delimiter=SEPARATORS[layout.format.kind])
    if first:
        writer.writerow([*layout.inputs, *layout.names()])
    kinds = [*layout.results.values(), "string"]
    cells = [_cells(column, kind) for column, kind in zip((*columns.values(), errors), kinds, strict=True)]
    for row, values in zip(rows, zip(*cells, strict=True), strict=True):
        writer.writerow([*(as_cell(row.values.get(name)) for name in layout.inputs), *values])
    return "".join(text)


class _Lines(list[str]):
    """Lines of a csv writer, each ended by a line feed alone. The writer itself ends them by "\\r\\n": some versions of
    it quote fields only for what their lines end with, and readers end a line at a bare carriage return, too."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def _cells(column: Sequence[Any], kind: str) -> list[str]:
    """A column's values in a separated file: text as it is, nothing for null, the rest as JSON."""
    if kind == "string":
        return [value or "" for value in column]
    return ["" if value is None else text for value, text in zip(column, _texts(column, kind), strict=True)]


def _parquet(
    layout: Layout,
    rows: Sequence[Row],
    columns: Mapping[str, list[Any]],
    errors: Sequence[str | None],
    table: Any,
    name: str,
) -> bytes:
    from thresher.bulk.parquet import result_types, write_parquet

    own: dict[str, list[Any]] = {}
    if table is None:
        own = {
            column: [as_kind(row.values.get(column), kind) for row in rows] for column, kind in layout.inputs.items()
        }
    results = dict(zip(layout.names(), [*columns.values(), list(errors)], strict=True))
    kinds = dict(zip(layout.names(), [*layout.results.values(), "string"], strict=True))
    types = result_types({**({} if table is not None else layout.inputs), **kinds}, layout.width, name)
    return write_parquet(table, {**own, **results}, types, name)
