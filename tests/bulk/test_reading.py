"""Parts are the same from wherever they are read, and a broken row harms no other."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bulk.making import pack, packed, write
from thresher.bulk import reading, streams
from thresher.bulk.formats import format_of
from thresher.bulk.reading import Broken, Chunk, Place, read_chunks, read_header
from thresher.errors import DataError

BEGINNING = Place()


def chunks(path: Path, place: Place = BEGINNING, part_rows: int = 3) -> list[Chunk]:
    found = format_of(path.name)
    assert found is not None
    return list(read_chunks(path, found, place, part_rows=part_rows))


def plain(chunk: Chunk) -> Any:
    return chunk.rows if isinstance(chunk.rows, list) else chunk.rows.to_pylist()


NAMES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.csv", "a.tsv.gz", "a.csv.zst", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_the_same_from_its_beginning_on(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, [{"text": f"line\n{i}" if "sv" in name else f"line {i}", "n": i} for i in range(11)])
    whole = chunks(path)
    assert [len(plain(chunk)) for chunk in whole] == [3, 3, 3, 2]
    assert [chunk.before for chunk in whole] == [0, 3, 6, 9]
    for chunk in whole:
        rest = chunks(path, Place(chunk.number, chunk.start, chunk.before))
        assert [plain(one) for one in rest] == [plain(one) for one in whole[chunk.number :]]
        assert [one.end for one in rest] == [one.end for one in whole[chunk.number :]]


def test_parts_of_parquet_do_not_depend_on_row_groups_or_on_where_bytes_cut(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    from thresher.bulk.parquet import read_parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {i} " * (i % 7) for i in range(100)]})
    pyarrow.parquet.write_table(table, path, row_group_size=13)
    whole = list(read_parquet(path, Place(), part_rows=20, part_bytes=300))
    assert sum((plain(chunk) for chunk in whole), []) == table.to_pylist()
    for chunk in whole:
        place = Place(chunk.number, chunk.start, chunk.before)
        rest = list(read_parquet(path, place, part_rows=20, part_bytes=300))
        assert [(plain(one), one.end) for one in rest] == [(plain(one), one.end) for one in whole[chunk.number :]]


def test_an_empty_file_is_one_part_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "a.csv").write_text("text\n")
    for name in ("a.jsonl", "a.csv"):
        (only,) = chunks(tmp_path / name)
        assert only.rows == []


def test_long_rows_come_in_smaller_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PART_BYTES", 100)
    path = tmp_path / "a.txt"
    path.write_text(("x" * 60 + "\n") * 6)
    assert [len(chunk.rows) for chunk in chunks(path, part_rows=100)] == [2, 2, 2]


def test_a_line_without_end_is_one_broken_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (streams, reading):
        monkeypatch.setattr(module, "LONGEST_LINE", 50)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + "x" * 320 + '\n{"text": "b"}\n')
    (chunk,) = chunks(path, part_rows=9)
    assert chunk.rows[::2] == [b'{"text": "a"}\n', b'{"text": "b"}\n']
    assert isinstance(chunk.rows[1], Broken) and "more than 50 bytes" in chunk.rows[1].problem


def test_broken_rows_of_separated_files_harm_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OPEN_QUOTE", 5)
    path = tmp_path / "a.csv"
    filler = "".join(f"good{i},1\n" for i in range(8))
    path.write_bytes(
        b'\xef\xbb\xbftext,n\n"a"b,1\n"never closed,2\n' + filler.encode() + b'caf\xe9,3\n\n"x\ny",4\nlast,"open\n'
    )
    assert read_header(path, format_of("a.csv")) == ["text", "n"]  # type: ignore[arg-type]  # a known name
    (chunk,) = chunks(path, part_rows=99)
    good = [row for row in chunk.rows if not isinstance(row, Broken)]
    assert good == [*([f"good{i}", "1"] for i in range(8)), ["x\ny", "4"]]
    broken = [row for row in chunk.rows if isinstance(row, Broken)]
    assert [row.text for row in broken] == ['"a"b,1', '"never closed,2', "caf\\xe9,3", 'last,"open']
    for row, words in zip(broken, ("malformed", "not closed", "0xe9", "not closed"), strict=True):
        assert words in row.problem


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.lists(st.text(alphabet='a,"\n\r\t é', max_size=6), min_size=2, max_size=2), max_size=9))
def test_what_csv_writes_is_read_back(rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b"], *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    found = [row for chunk in chunks(path) for row in chunk.rows]
    assert found == rows


def test_a_file_that_ends_in_the_middle_is_one_error(tmp_path: Path) -> None:
    plain_file = tmp_path / "a.jsonl"
    plain_file.write_text('{"text": "some words"}\n' * 3000)
    path = pack(plain_file, tmp_path / "a.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read.*complete"):
        chunks(path, part_rows=10_000)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_members_that_follow_one_another_are_all_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed(b"one\n", suffix) + packed(b"two\n", suffix))
    (chunk,) = chunks(path)
    assert chunk.rows == [b"one\n", b"two\n"]
    parts = [tmp_path / "1.part", tmp_path / "2.part"]
    for part, text in zip(parts, (b"one\n", b"two\n"), strict=True):
        part.write_bytes(streams.packed(text, suffix[1:], part))
    streams.concatenate(parts, path, suffix[1:])
    assert chunks(path)[0].rows == [b"one\n", b"two\n"]


def test_a_quote_that_nobody_closes_holds_no_more_than_a_line_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)

    class Counted:
        place = given = 0

        def __iter__(self) -> Any:
            for line in [b'"open\n', *[b"of twenty characters\n"] * 50]:
                self.place, self.given = self.place + len(line), self.given + 1
                yield line

    lines: Any = Counted()
    row, _ = next(reading.separated(lines, ",", header=False))
    assert isinstance(row, Broken) and "a quote is opened and not closed" in row.problem
    assert lines.given < 10
