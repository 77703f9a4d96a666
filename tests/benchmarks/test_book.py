"""benchmarks/gpu/book.py: rows are written at once, and the same command goes on where the last one stopped."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import measuring
import pytest

KEY = ("bench", "rows")


def book_of(file: Path, *, commit: str | None = "abc", seconds: float = 100.0) -> Any:
    sys.path.insert(0, str(measuring.HERE / "gpu"))
    return importlib.import_module("book").Book(file, {"commit": commit}, key=KEY, seconds=seconds)


def test_what_the_file_has_is_not_wanted_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rows.jsonl"
    first = book_of(file)
    assert first.wants(bench="a", rows=1)
    first.add(bench="a", rows=1, ms=3.0)
    again = book_of(file)
    for book in (first, again):
        assert not book.wants(bench="a", rows=1) and book.wants(bench="a", rows=2)
    assert json.loads(file.read_text(encoding="utf-8")) == {"bench": "a", "rows": 1, "ms": 3.0, "commit": "abc"}


def test_failures_are_rows_and_are_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = book_of(tmp_path / "rows.jsonl")
    with book.attempt(bench="a", rows=1):
        raise ValueError("no such tile")
    assert "no such tile" in capsys.readouterr().err
    (row,) = (json.loads(line) for line in book.file.read_text(encoding="utf-8").splitlines())
    assert row["error"] == "ValueError: no such tile"
    assert book.wants(bench="a", rows=1) and book_of(book.file).wants(bench="a", rows=1)
    book.add(bench="b", failed=0, error=0)  # tests that failed are counted by these names
    assert not book_of(book.file).wants(bench="b")


@pytest.mark.parametrize("commit", ["other", "abc+", None])
def test_rows_of_other_or_unknown_sources_do_not_count(tmp_path: Path, commit: str | None) -> None:
    file = tmp_path / "rows.jsonl"
    for made in ("abc", "abc+", None):
        book_of(file, commit=made).add(bench="a")
    assert book_of(file, commit=commit).wants(bench="a")


def test_half_a_line_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    book_of(file).add(bench="a")
    with file.open("a", encoding="utf-8") as end:
        end.write('{"bench": "b", "ro')
    book_of(file).add(bench="c")
    found = book_of(file)
    assert [found.wants(bench=name) for name in "abc"] == [False, True, False]


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = book_of(tmp_path / "rows.jsonl", seconds=0.0)
    assert not book.wants(bench="a") and book.left_out == 1
    book.end()
    assert capsys.readouterr().out.startswith("1 measurements were left out, for which there was no time")
