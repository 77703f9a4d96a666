"""A file of measurements for calls that may end at any moment: every row is written at once, and the same command again
goes on where the last one stopped."""

import contextlib
import json
import math
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Book:
    """Rows that say which commit made them. `key`: what tells one measurement from another; `seconds`: after which no
    more is begun, from now on."""

    def __init__(self, file: Path, about: Row, *, key: Sequence[str], seconds: float = math.inf) -> None:
        self.file, self.about, self.key = file, about, tuple(key)
        self.began, self.seconds, self.left_out = time.monotonic(), seconds, 0
        self._writing = threading.Lock()
        commit = about["commit"]
        # Sources that nobody can name, or that were changed, may be others than those that made the rows.
        known = commit is not None and not commit.endswith("+")
        rows = rows_of(file) if known and file.exists() else []
        self.have = {self._named(row) for row in rows if row.get("commit") == commit and not failed(row)}
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
            with file.open("a", encoding="utf-8") as end:
                end.write("\n")  # after half a line of a process that was killed

    def __str__(self) -> str:
        known = f"{len(self.have)} rows of commit {self.about['commit']} are there already"
        limit = "no limit" if self.seconds == math.inf else f"nothing is begun after {self.seconds:.0f} s"
        return f"{self.file}: {known}; {limit}"

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - self.spent

    def wants(self, **row: Any) -> bool:
        """Whether this measurement is missing, and there is time for it."""
        if self._named(row) in self.have:
            return False
        if self.left > 0:
            return True
        self.left_out += 1
        return False

    def add(self, **row: Any) -> None:
        with self._writing, self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, **self.about}) + "\n")
        if not failed(row):
            self.have.add(self._named(row))

    @contextlib.contextmanager
    def attempt(self, **row: Any) -> Iterator[None]:
        """A failure is a row, too, and the next measurement goes on; the same command tries it again."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(limit=4)
            self.add(**row, error=f"{type(error).__name__}: {str(error)[:300]}")

    def end(self) -> None:
        said = f"{self.left_out} measurements were left out, for which there was no time: the same command goes on"
        print(f"{said if self.left_out else 'all is there'}, {self.spent:.0f} s", flush=True)

    def _named(self, row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(name)) for name in self.key)


def failed(row: Row) -> bool:
    """Counts of tests have these names, too."""
    return any(isinstance(row.get(name), str) for name in ("error", "failed"))


def rows_of(file: Path) -> list[Row]:
    """Its rows; the last may be half a line, where a process was killed."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
