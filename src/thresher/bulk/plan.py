"""What is read of every file and what its output looks like, found out and checked before any work."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from thresher.bulk.answers import RESULTS
from thresher.bulk.formats import SEPARATORS, Shard
from thresher.bulk.reading import Place, read_chunks, read_header
from thresher.bulk.rows import Columns, Row, kind_of, parse_chunk, wider
from thresher.bulk.writing import ERROR, Layout
from thresher.errors import DataError

LOOK = 1000  # lines of JSON in which a column must be met for the first time


def columns_in(shard: Shard, columns: Columns) -> list[str]:
    """A file's columns; of JSON lines those of the first ones. A column that is asked for and missing is an error."""
    kind = shard.format.kind
    if kind in SEPARATORS:
        found = read_header(shard.source, shard.format)
    elif kind == "parquet":
        from thresher.bulk.parquet import columns_of

        found = columns_of(shard.source)
    elif kind == "txt":
        next(iter(read_chunks(shard.source, shard.format, Place(), part_rows=1)))  # so that it can be read at all
        found = [name for name in (columns.text, columns.pair) if name is not None]
    else:
        rows = list(islice(_json_rows(shard, columns, part_rows=LOOK), LOOK))
        found = list(dict.fromkeys(name for row in rows for name in row.values if row.line is not None))
        if not any(row.line is not None for row in rows):  # nothing to learn from
            return columns.names()
    for name in columns.names():
        if name not in found:
            listed = ", ".join(map(repr, found)) or "none"
            option = next(kind for kind in ("text", "pair", "id") if getattr(columns, kind) == name)
            raise DataError(
                f"{shard.source} has no column '{name}'; available columns: {listed}; say which with --{option}-column"
            )
    return found


def _json_rows(shard: Shard, columns: Columns, *, part_rows: int) -> Iterator[Row]:
    for chunk in read_chunks(shard.source, shard.format, Place(), part_rows=part_rows):
        yield from parse_chunk(chunk, shard.format.kind, columns, header=[], taken=frozenset())


def plan_layout(shard: Shard, columns: Columns, found: Sequence[str], *, means: str, width: int, prefix: str) -> Layout:
    """What a shard's output looks like. `found`: its columns; means, width: of the engine's outputs.

    Lines of JSON may have a column anywhere: where the output is a table, all of them are read first.
    """
    results = RESULTS[means]
    added = {prefix + name for name in (*results, ERROR)}
    kinds: dict[str, str] = dict.fromkeys(found, "string")
    if shard.format.kind == "jsonl":
        kinds = _json_kinds(shard, columns) if shard.target.kind != "jsonl" else {}
    for name in (*found, *kinds):
        if name in added:
            raise DataError(
                f"{shard.source} has a column '{name}', and so have the results; give theirs a --prefix, such as "
                f"{'new_' if prefix else 'predicted_'}"
            )
    return Layout(shard.target, kinds, results, prefix, width)


def _json_kinds(shard: Shard, columns: Columns) -> dict[str, str]:
    """Every column of the file, and a kind that holds all its values."""
    found: dict[str, str | None] = {}
    for row in _json_rows(shard, columns, part_rows=LOOK):
        for name, value in row.values.items():
            found[name] = wider(found.get(name), kind_of(value))
    return {name: kind or "string" for name, kind in found.items()} or dict.fromkeys(columns.names(), "string")


def saved_layout(shard: Shard, inputs: Mapping[str, str], *, means: str, width: int, prefix: str) -> Layout:
    """The layout of work that was begun, whose manifest has the columns."""
    return Layout(shard.target, dict(inputs), RESULTS[means], prefix, width)
