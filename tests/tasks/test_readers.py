import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thresher.errors import DataError
from thresher.tasks.readers import read_table

ROWS = [{"text": 'a, "good" film\nof sorts', "label": "1"}, {"text": "bad\u2028one", "label": "0"}]
CSV = 'text,label\r\n"a, ""good"" film\nof sorts",1\r\n\r\nbad\u2028one,0\r\n'
JSONL = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", CSV),
        ("rows.CSV", "\ufeff" + CSV),
        ("rows.tsv", CSV.replace(",1", "\t1").replace(",0", "\t0").replace("text,", "text\t")),
        ("my.rows.jsonl", JSONL),
        ("rows.ndjson", JSONL.replace("\n", "\r\n")),
    ],
)
@pytest.mark.parametrize(
    ("packing", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)], ids=["plain", "gz", "xz"]
)
def test_text_formats(tmp_path: Path, name: str, content: str, packing: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / (name + packing)
    path.write_bytes(pack(content.encode("utf-8")))
    assert read_table(path).rows == ROWS


def test_places_count_rows_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(CSV, encoding="utf-8", newline="")
    table = read_table(path)
    assert table.lines == [2, 5]
    assert table.where(1) == f"{path}, row 2 (line 5)"


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None], "label": [0.5, 2.0]}), path)
    table = read_table(path)
    assert table.rows == [{"text": "a", "label": 0.5}, {"text": None, "label": 2.0}]
    assert table.where(1) == f"{path}, row 2"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"rows.parquet cannot be read as Parquet: .*; check that the file is complete"):
        read_table(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'needs the package pyarrow.*pip install "thresher\[parquet\]"'):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"", r"rows.csv has no rows; give a file"),
        ("rows.csv", b"text,label\n", r"rows.csv has no rows"),
        ("rows.jsonl", b"\n \n", r"rows.jsonl has no rows"),
        ("rows.csv", b"text,label\na,1\nb\n", r"row 2 \(line 3\) has 1 fields, the header has 2; quote fields"),
        ("rows.csv", b"text,label\na,b,1\n", r"row 1 \(line 2\) has 3 fields"),
        ("rows.csv", b"text;label\na, b;1\n", r"row 1 .*the header has 1; the separator seems to be ';', not ','"),
        ("rows.csv", b'text,label\na,1\n"b,1\nc,1\n', r"row 2 \(line 3\) is malformed: unexpected end of data; double"),
        ("rows.tsv", b'text\tlabel\n"so" he said\t1\n', r"row 1 \(line 2\) is malformed: .*save the data as .jsonl"),
        ("rows.csv", b"text,text\na,1\n", r"two columns named 'text'"),
        ("rows.csv", b"text,label\na,1\ncaf\xe9,1\n", r"rows.csv, line 3 has the byte 0xe9, which is not UTF-8; save"),
        ("rows.jsonl", b'{"a": 1}\n\n{"a": \n', r"row 2 \(line 3\) is not valid JSON: .*one JSON object"),
        ("rows.jsonl", b"[1, 2]\n", r"row 1 \(line 1\) is a JSON list; each line"),
        ("rows.jsonl", b"[" * 100_000, r"row 1 \(line 1\) is not valid JSON"),
        ("rows.jsonl", b'{"a": ' + b"9" * 5000 + b"}", r"row 1 \(line 1\) is not valid JSON"),
        ("rows.jsonl.gz", b"no gzip", r"rows.jsonl.gz cannot be read: .*; check that the file is complete"),
        ("rows.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-6], r"rows.jsonl.gz cannot be read"),
        ("rows.jsonl.xz", lzma.compress(b'{"a": 1}')[:-6], r"rows.jsonl.xz cannot be read"),
        ("rows.txt", b"a", r"rows.txt has an unknown extension; it must be .csv, .tsv, .jsonl"),
        ("rows", b"a", r"rows has an unknown extension"),
        ("rows.parquet.gz", b"a", r"unknown extension"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.csv does not exist; give the path"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder.csv is a folder"):
        read_table(tmp_path / "folder.csv")


def test_long_fields_are_read_and_the_limit_is_put_back(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    (tmp_path / "rows.csv").write_text("text\n" + "x" * 200_000 + "\n", encoding="utf-8")
    assert len(read_table(tmp_path / "rows.csv").rows[0]["text"]) == 200_000
    assert csv.field_size_limit() == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_survives_the_round_trip(tmp_path: Path, texts: list[str]) -> None:
    import csv

    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([text, "0"] for text in texts)])
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps({"text": text, "label": "0"}, ensure_ascii=False) + "\n" for text in texts)
    assert [row["text"] for row in read_table(tmp_path / "rows.csv").rows] == texts
    assert [row["text"] for row in read_table(tmp_path / "rows.jsonl").rows] == texts


@pytest.mark.parametrize("name", ["x" * 300 + ".csv", "a\x00.csv", "\ud83d.csv"], ids=["long", "nul", "half"])
def test_what_can_be_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be a path: .*; give the path of a data file"):
        read_table(tmp_path / name)
