"""Where unfinished work lies: a manifest for each shard, and its parts, each there as a whole or not at all.

OUT.partial/shards/00000/manifest.json   what is computed, of which input and run; when it is finished, its totals
OUT.partial/shards/00000/000000.part     a part of the output
OUT.partial/shards/00000/000000.json     that the part is done: its rows, errors and place in the input
OUT.partial/out/NAME                     a shard's output, once all its parts are done
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thresher.bulk.formats import Format
from thresher.bulk.reading import Place
from thresher.bulk.streams import concatenate, on_disk
from thresher.errors import RunError
from thresher.records import read_json

TEMPORARY = ".tmp"


@dataclass(frozen=True)
class Done:
    """A part that is computed: how many rows it has, how many of them with errors, and where it lies in its input.

    `shares` as in Answers; `first` is the first error, with its row.
    """

    number: int
    rows: int
    errors: int
    tokens: int
    shares: float
    truncated: int
    start: int
    end: int
    read: int
    size: int = 0
    first: tuple[int, str] | None = None


def totals(parts: Sequence[Done]) -> dict[str, Any]:
    """What a shard's manifest says of it in the end."""
    first = next((part.first for part in parts if part.first is not None), None)
    return {
        "parts": len(parts),
        "rows": sum(part.rows for part in parts),
        "errors": sum(part.errors for part in parts),
        "truncated": sum(part.truncated for part in parts),
        "tokens": sum(part.tokens for part in parts),
        "shares": sum(part.shares for part in parts),
        "first_error": None if first is None else {"row": first[0], "error": first[1]},
    }


class ShardStore:
    """One shard's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = read_json(folder / "manifest.json", error=RunError)

    @property
    def finished(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.manifest.get("finished")
        return found

    def done(self) -> dict[int, Done]:
        """The parts that are there as a whole; what an end in the middle of writing left behind is removed."""
        for file in self.folder.glob(f"*{TEMPORARY}"):
            file.unlink()
        found = {}
        for file in sorted(self.folder.glob("[0-9]*.json")):
            with suppress(OSError, ValueError, TypeError, KeyError):
                saved = json.loads(file.read_text(encoding="utf-8"))
                first = saved.pop("first")
                part = Done(**saved, first=None if first is None else (first[0], first[1]))
                if self._data(part.number).stat().st_size == part.size:
                    found[part.number] = part
        return found

    def write(self, part: Done, data: bytes) -> Done:
        """The part, and after it that it is done: both are on the disk when this returns."""
        part = Done(**{**asdict(part), "size": len(data)})
        write_whole(self._data(part.number), data)
        write_whole(self.folder / f"{part.number:06d}.json", json.dumps(asdict(part)).encode())
        on_disk(self.folder)
        return part

    def join(self, parts: Sequence[Done], out: Path, format: Format) -> None:
        """All parts as one file, then the totals; the parts go."""
        files = [self._data(part.number) for part in parts]
        out.parent.mkdir(exist_ok=True)
        temporary = out.with_name(out.name + TEMPORARY)
        if format.kind == "parquet":
            from thresher.bulk.parquet import join_parquet

            join_parquet(files, temporary)
        else:
            concatenate(files, temporary, format.packing)
        os.replace(temporary, out)
        on_disk(out.parent)
        self.manifest = {**self.manifest, "finished": totals(parts)}
        _write_manifest(self.folder, self.manifest)
        on_disk(self.folder)
        self.clear()

    def clear(self) -> None:
        """Remove the parts of a finished shard."""
        for file in (*self.folder.glob("*.part"), *self.folder.glob("[0-9]*.json")):
            file.unlink()

    def _data(self, number: int) -> Path:
        return self.folder / f"{number:06d}.part"


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_whole(folder / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """All of it, on the disk, or nothing; what an end in the middle leaves behind, the next call replaces."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def next_place(done: Mapping[int, Done]) -> Place:
    """Where the first part begins that is not done."""
    number = start = before = 0
    while number in done:
        start, before, number = done[number].end, before + done[number].rows, number + 1
    return Place(number, start, before)


def begin_shards(work: Path, manifests: Sequence[Mapping[str, Any]]) -> list[ShardStore]:
    """A folder for each shard, all of them or none."""
    building = work / f"shards{TEMPORARY}"
    shutil.rmtree(building, ignore_errors=True)
    for number, manifest in enumerate(manifests):
        folder = building / f"{number:05d}"
        folder.mkdir(parents=True)
        _write_manifest(folder, manifest)
    on_disk(building)
    os.replace(building, work / "shards")
    on_disk(work)
    return list(open_shards(work))


def remove_work(work: Path) -> None:
    """Remove everything; half of it, after an end in the middle, is not taken for work to go on with."""
    building = work / f"shards{TEMPORARY}"
    shutil.rmtree(building, ignore_errors=True)
    os.replace(work / "shards", building)
    shutil.rmtree(work)


def open_shards(work: Path) -> Iterator[ShardStore]:
    """The shards of work that was begun, in their order; none where there is no such work."""
    for folder in sorted((work / "shards").glob("[0-9]*")):
        yield ShardStore(folder)
