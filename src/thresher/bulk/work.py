"""The parts of all shards: which are missing, computed by a crew in any order, and joined when a shard is complete."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.bulk.formats import Shard
from thresher.bulk.reading import read_chunks
from thresher.bulk.rows import Columns
from thresher.bulk.scorer import Crew, Part
from thresher.bulk.store import Done, ShardStore, next_place
from thresher.bulk.writing import Layout


@dataclass(frozen=True)
class WorkDone:
    """How far the work is: rows that are done, of them in this call; bytes of the inputs, and how many of them are
    done. Rows and seconds to go by are of this call."""

    rows: int
    errors: int
    bytes_done: int
    bytes_total: int
    texts_per_s: float
    seconds_left: float | None


class Work:
    """Shards with their stores, layouts and columns, each in the same order."""

    def __init__(
        self,
        shards: Sequence[Shard],
        stores: Sequence[ShardStore],
        layouts: Sequence[Layout],
        headers: Sequence[list[str]],
        columns: Columns,
        *,
        part_rows: int,
    ) -> None:
        self.shards, self.stores, self.layouts, self.headers = shards, stores, layouts, headers
        self.columns, self.part_rows = columns, part_rows
        self._done: list[dict[int, Done]] = [{} if store.finished else store.done() for store in stores]
        self._parts: dict[int, int] = {}  # shard -> how many parts it has, known once it is read to its end

    def run(self, crew: Crew, folder: Path, progress: Callable[[WorkDone], None]) -> int:
        """Compute what is missing; outputs of shards appear in the folder. Returns how many rows were computed."""
        clock = _Clock(self._counts())
        progress(clock.progress(*self._counts()))
        rows, errors, read, total = self._counts()

        def heard(more_rows: int, more_read: int) -> None:
            progress(clock.progress(rows + more_rows, errors, read + more_read, total))

        for found in crew.run(self._missing(), heard):
            self._done[found.shard][found.done.number] = self.stores[found.shard].write(found.done, found.data)
            self._join(found.shard, folder)
            rows, errors, read, total = self._counts()
            progress(clock.progress(rows, errors, read, total))
        for number in range(len(self.shards)):
            self._join(number, folder)
        return clock.rows

    def _missing(self) -> Iterator[Part]:
        """What is missing, shard by shard; reads of the inputs no more than is asked for."""
        for number, (shard, layout, header) in enumerate(zip(self.shards, self.layouts, self.headers, strict=True)):
            if self.stores[number].finished:
                self.stores[number].clear()
                continue
            there = frozenset(self._done[number])
            place = next_place(self._done[number])
            count = place.number
            for chunk in read_chunks(shard.source, shard.format, place, part_rows=self.part_rows):
                count = chunk.number + 1
                if chunk.number not in there:
                    yield Part(number, chunk, shard.format.kind, header, self.columns, layout)
            self._parts[number] = count

    def _join(self, number: int, folder: Path) -> None:
        """The shard's output, if all its parts are there and it is not."""
        store, done = self.stores[number], self._done[number]
        if store.finished or self._parts.get(number) != len(done):
            return
        shard = self.shards[number]
        store.join([done[part] for part in range(len(done))], folder / shard.name, shard.target)

    def _counts(self) -> tuple[int, int, int, int]:
        """Rows, errors, bytes done and bytes in all."""
        rows = errors = read = total = 0
        for shard_number, store in enumerate(self.stores):
            size = int(store.manifest["input"]["bytes"])
            total += size
            if store.finished:
                rows, errors = rows + store.finished["rows"], errors + store.finished["errors"]
                read += size
            else:
                parts = self._done[shard_number].values()
                rows, errors = rows + sum(part.rows for part in parts), errors + sum(part.errors for part in parts)
                read += min(size, sum(part.read for part in parts))
        return rows, errors, read, total


class _Clock:
    """Speed and time left, from what this call has done."""

    def __init__(self, before: tuple[int, int, int, int]) -> None:
        self._rows, _, self._read, _ = before
        self._began = time.perf_counter()
        self.rows = 0

    def progress(self, rows: int, errors: int, read: int, total: int) -> WorkDone:
        seconds = time.perf_counter() - self._began
        self.rows = rows - self._rows
        pace = (read - self._read) / seconds if seconds > 0 else 0.0
        left = (total - read) / pace if pace > 0 else None
        return WorkDone(rows, errors, read, total, self.rows / seconds if self.rows else 0.0, left)
