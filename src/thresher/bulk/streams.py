"""Bytes of files that may be packed: read from any place on, and packed part by part."""

import gzip
import importlib
import io
import lzma
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from thresher.errors import DataError

LONGEST_LINE = 32 * 2**20  # bytes; a longer one is an error in its row, and is never held
_MARK = b"\xef\xbb\xbf"  # spreadsheets put it first, and it would become part of the first column's name
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)


def arrow(path: object, module: str = "pyarrow") -> Any:
    """pyarrow, or a part of it; `path` is the file that needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f'{path} needs the package pyarrow; run: pip install "thresher[parquet]"') from error


class Lines:
    """The lines of a file from a byte of its unpacked text on.

    `place` is the byte after the last line that was given, `read` how many bytes of the file on the disk were used.
    """

    def __init__(self, path: Path, packing: str, start: int = 0) -> None:
        self.path, self.place = path, start
        self._disk: IO[bytes] = path.open("rb")
        try:
            self._text: Any = _unpacked(self._disk, packing, path)
            if packing:
                _skip(self._text, start)
            else:
                self._text.seek(start)
            if start == 0 and self._text.peek(3)[:3] == _MARK:
                self._text.read(3)
                self.place = 3
        except BaseException:
            self._disk.close()
            raise

    @property
    def read(self) -> int:
        return self._disk.tell()

    def __iter__(self) -> Iterator[bytes]:
        """Each with its end of line; of one that is too long, only a beginning without it."""
        while line := self._text.readline(LONGEST_LINE):
            self.place += len(line)
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while rest := self._text.readline(LONGEST_LINE):
                    self.place += len(rest)
                    if rest.endswith(b"\n"):
                        break
            yield line

    def close(self) -> None:
        self._text.close()
        self._disk.close()


@contextmanager
def lines_of(path: Path, packing: str, start: int = 0) -> Iterator[Lines]:
    """A file's lines; whatever is wrong with the file is one error, now or while it is read."""
    try:
        found = Lines(path, packing, start)
        try:
            yield found
        finally:
            found.close()
    except BROKEN as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read: {why}; check that the file is complete and readable") from error


def _unpacked(disk: IO[bytes], packing: str, path: Path) -> Any:
    if packing == "gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=disk))
    if packing == "xz":
        return io.BufferedReader(lzma.LZMAFile(disk))
    if packing == "zst":
        pyarrow = arrow(path)
        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(disk), "zstd"))
    return disk


def _skip(text: Any, count: int) -> None:
    while count > 0:
        got = len(text.read(min(count, 2**20)))
        if not got:
            raise EOFError("it ends before the place where the work stopped")
        count -= got


def packed(data: bytes, packing: str, path: object) -> bytes:
    """The same bytes for the same data, whenever it is packed."""
    if packing == "gz":
        return gzip.compress(data, compresslevel=6, mtime=0)
    if packing == "xz":
        return lzma.compress(data, preset=3)
    if packing == "zst":
        pyarrow = arrow(path)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return bytes(sink.getvalue().to_pybytes())
    return data


def concatenate(parts: Sequence[Path], out: Path, packing: str) -> None:
    """All parts in one file. Members of gz and xz may follow one another in a file; of zst many readers see only the
    first, so that it is packed as one."""
    with out.open("wb") as file:
        if packing == "zst":
            pyarrow = arrow(out)
            with pyarrow.CompressedOutputStream(pyarrow.PythonFile(file), "zstd") as stream:
                for part in parts:
                    with pyarrow.CompressedInputStream(pyarrow.OSFile(str(part)), "zstd") as text:
                        while piece := text.read(2**20):
                            stream.write(piece)
        else:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, file, 2**20)
    on_disk(out)


def on_disk(path: Path) -> None:
    """What was written to a file or folder stays, also if the power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
