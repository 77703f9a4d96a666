"""One engine at work on parts of files: here, or in a worker on another machine."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from thresher.bulk.answers import RESULTS, Answers, answer
from thresher.bulk.reading import Chunk
from thresher.bulk.rows import Columns, Row, parse_chunk
from thresher.bulk.store import Done
from thresher.bulk.writing import Layout, render
from thresher.engine.checks import check_dimensions
from thresher.errors import ConfigError, ModelError

Heard = Callable[[int, int], None]  # is told now and then of rows, and bytes of the input, in parts not done yet
FIRST_ERROR = 300  # characters of an error that are remembered


@dataclass(frozen=True)
class Setting:
    """How an engine is loaded; of all workers alike."""

    run: str
    device: str = "auto"
    dtype: str = "auto"
    dial: float = 1.0
    max_length: int | None = None
    workers: int | None = None
    means: str | None = None
    dimensions: int | None = None


@dataclass(frozen=True)
class About:
    """What a loaded engine is: what its outputs mean, the width of embeddings, and the arithmetic it computes in."""

    means: str
    width: int
    device: str
    dtype: str
    why: str


@dataclass(frozen=True)
class Part:
    """A part to compute: `shard` is the number of its file, `kind` the file's."""

    shard: int
    chunk: Chunk
    kind: str
    header: list[str]
    columns: Columns
    layout: Layout


@dataclass(frozen=True)
class Computed:
    """A part of the output."""

    shard: int
    done: Done
    data: bytes


class Crew(Protocol):
    """Who computes parts: one engine here, or many elsewhere. They may come in any order."""

    about: About

    def run(self, parts: Iterator[Part], heard: Heard) -> Iterator[Computed]:
        """All parts, few of them taken ahead."""


class Scorer:
    """An engine, and what turns parts into parts."""

    def __init__(self, setting: Setting) -> None:
        from thresher.engine.engine import Engine

        self.engine = Engine.load(
            setting.run,
            device=setting.device,
            dtype=setting.dtype,
            dial=setting.dial,
            max_length=setting.max_length,
            workers=setting.workers,
            means=setting.means,
        )
        about, head = self.engine.describe(), self.engine.head
        if head.means not in RESULTS:
            raise ModelError(f"{setting.run} has a head for {head.means}; files are scored for: {', '.join(RESULTS)}")
        if setting.dimensions is not None and head.means != "embedding":
            raise ConfigError(f"dimensions = {setting.dimensions} is of embeddings, and {setting.run} has none")
        width = int(head.width or about["width"]) if head.means == "embedding" else 0
        width = check_dimensions(setting.dimensions, width) or width
        self.dimensions = setting.dimensions
        self.about = About(head.means, width, str(about["device"]), str(about["dtype"]), str(about["why"]))

    def compute(self, part: Part) -> Computed:
        """One part, alone: what it gives depends on nothing else."""
        rows = _rows(part)
        return _rendered(part, rows, self._answers(rows, lambda count: None))

    def _answers(self, rows: list[Row], heard: Callable[[int], None]) -> Answers:
        items = [row.item for row in rows if row.item is not None]
        return answer(self.engine, items, heard, dimensions=self.dimensions)

    def run(self, parts: Iterator[Part], heard: Heard) -> Iterator[Computed]:
        """Parts in their order. The next is read, and the last one written out, while one is computed."""
        reading = threading.Lock()

        def read() -> tuple[Part, list[Row]] | None:
            with reading:
                part = next(parts, None)
                return None if part is None else (part, _rows(part))

        with ThreadPoolExecutor(max_workers=2) as pool:
            coming, last, behind = pool.submit(read), None, (0, 0)
            while (found := coming.result()) is not None:
                coming = pool.submit(read)
                part, rows = found
                answers = self._answers(rows, partial(_tell, heard, part.chunk, len(rows), behind))
                if last is not None:
                    yield last.result()
                last, behind = pool.submit(_rendered, part, rows, answers), (len(rows), part.chunk.read)
            if last is not None:
                yield last.result()


def _tell(heard: Heard, chunk: Chunk, rows: int, behind: tuple[int, int], count: int) -> None:
    """What of a part is answered, and of the one behind, which is being written out."""
    heard(behind[0] + count, behind[1] + chunk.read * count // max(1, rows))


def _rows(part: Part) -> list[Row]:
    chunk = part.chunk
    if part.kind == "parquet" == part.layout.format.kind:  # which copies the other columns unread
        chunk = Chunk(chunk.number, chunk.before, chunk.rows.select(part.columns.names()), *_place(chunk))
    taken = frozenset(part.layout.names())
    return list(parse_chunk(chunk, part.kind, part.columns, header=part.header, taken=taken))


def _place(chunk: Chunk) -> tuple[int, int, int]:
    return chunk.start, chunk.end, chunk.read


def _rendered(part: Part, rows: list[Row], answers: Answers) -> Computed:
    chunk = part.chunk
    table = chunk.rows if part.kind == "parquet" == part.layout.format.kind else None
    data = render(part.layout, rows, answers, table=table, first=chunk.number == 0)
    given = iter(answers.errors)
    errors = [(number, row.error or next(given)) for number, row in enumerate(rows)]
    bad = [(chunk.before + number + 1, error[:FIRST_ERROR]) for number, error in errors if error]
    done = Done(
        number=chunk.number,
        rows=len(rows),
        errors=len(bad),
        tokens=answers.tokens,
        shares=answers.shares,
        truncated=answers.truncated,
        start=chunk.start,
        end=chunk.end,
        read=chunk.read,
        first=bad[0] if bad else None,
    )
    return Computed(part.shard, done, data)


def absolute(run: str | Path) -> str:
    """A folder's path as workers in other folders find it; a hub's name as it is."""
    from thresher.workplace import folder_here

    folder = folder_here(run)
    return str(run) if folder is None else str(folder)
