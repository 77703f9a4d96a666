"""Parquet in and out: parts are tables, and every part becomes row groups of the output."""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from thresher.bulk.reading import Chunk, Place
from thresher.bulk.streams import arrow, on_disk
from thresher.errors import DataError

BATCH = 1024  # rows that are decoded at a time


def open_parquet(path: Path) -> Any:
    pyarrow, parquet = arrow(path), arrow(path, "pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def columns_of(path: Path) -> list[str]:
    with open_parquet(path) as file:
        names = list(file.schema_arrow.names)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns named '{name}'; column names must differ")
    return names


def read_parquet(path: Path, place: Place, *, part_rows: int, part_bytes: int) -> Iterator[Chunk]:
    """Tables of at most so many rows, or of about so many bytes, from a row on."""
    pyarrow = arrow(path)
    with open_parquet(path) as file:
        size, total = path.stat().st_size, max(1, file.metadata.num_rows)
        number, start = place.number, place.start
        pieces: list[Any] = []
        rows = held = 0

        def chunk() -> Chunk:
            table = pyarrow.Table.from_batches(pieces, file.schema_arrow)
            return Chunk(number, start, table, start, start + rows, size * rows // total)

        try:
            for batch in _batches(file, start):
                while batch.num_rows:
                    pieces.append(batch.slice(0, part_rows - rows))
                    batch = batch.slice(pieces[-1].num_rows)
                    rows, held = rows + pieces[-1].num_rows, held + pieces[-1].nbytes
                    if rows >= part_rows or held >= part_bytes:
                        yield chunk()
                        number, start, pieces, rows, held = number + 1, start + rows, [], 0, 0
        except (pyarrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from error
        if pieces or number == 0:
            yield chunk()


def _batches(file: Any, start: int) -> Iterator[Any]:
    """From a row on; they end where they would end if all were read, so that parts do, too."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        skip, first = max(0, start - first), first + count
        if skip >= count:
            continue
        for batch in file.iter_batches(batch_size=BATCH, row_groups=[group]):
            left = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - left.num_rows
            yield left


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(f"{path} cannot be read as Parquet: {reason}; check that the file is complete")


def result_types(columns: Mapping[str, str], width: int, path: object) -> dict[str, Any]:
    """pyarrow's types by ours. width: of embeddings."""
    pyarrow = arrow(path)
    known = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "count": pyarrow.int32(),
        "number": pyarrow.float32(),
        "strings": pyarrow.list_(pyarrow.string()),
        "numbers": pyarrow.map_(pyarrow.string(), pyarrow.float32()),
        "vector": pyarrow.list_(pyarrow.float32(), width),
        "entities": pyarrow.list_(
            pyarrow.struct(
                [("label", pyarrow.string()), ("text", pyarrow.string())]
                + [("start", pyarrow.int64()), ("end", pyarrow.int64()), ("score", pyarrow.float64())]
            )
        ),
    }
    return {name: known[kind] for name, kind in columns.items()}


def write_parquet(table: Any, columns: Mapping[str, Any], types: Mapping[str, Any], path: object) -> bytes:
    """A part: the input's table, or None where it is none, and columns beside it."""
    pyarrow, parquet = arrow(path), arrow(path, "pyarrow.parquet")
    names = [] if table is None else list(table.schema)
    arrays = [] if table is None else list(table.columns)
    for name, values in columns.items():
        names.append(pyarrow.field(name, types[name]))
        arrays.append(_array(values, types[name], pyarrow))
    schema = pyarrow.schema(names, metadata=None if table is None else table.schema.metadata)
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _array(values: Sequence[Any], kind: Any, pyarrow: Any) -> Any:
    """A column. Maps are built from their flat keys and values, which is quicker."""
    if not pyarrow.types.is_map(kind):
        return pyarrow.array(values, kind)
    there = [one or {} for one in values]
    ends = [0, *accumulate(len(one) for one in there)]
    starts = [None if one is None else end for one, end in zip(values, ends, strict=False)]
    keys = pyarrow.array([name for one in there for name in one], kind.key_type)
    items = pyarrow.array([value for one in there for value in one.values()], kind.item_type)
    return pyarrow.MapArray.from_arrays(pyarrow.array([*starts, ends[-1]], pyarrow.int32()), keys, items)


def join_parquet(parts: Sequence[Path], out: Path) -> None:
    """The parts as row groups of one file."""
    parquet = arrow(out, "pyarrow.parquet")
    with parquet.ParquetFile(parts[0]) as first:
        schema = first.schema_arrow
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for part in parts:
            with parquet.ParquetFile(part) as file:
                writer.write_table(file.read())
    on_disk(out)
