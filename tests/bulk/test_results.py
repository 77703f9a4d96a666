"""What is written beside a row's own columns: for every head, in every format, and for bad rows."""

import csv
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bulk.making import TEXTS, lines, rows, score, unpacked, write
from tests.cli import kinds
from thresher.bulk import plan
from thresher.engine.engine import Engine
from thresher.errors import ConfigError, DataError

COUNTS = ["tokens", "kept", "truncated", "error"]


def engine(folder: Path) -> Engine:
    return Engine.load(folder, device="cpu", dtype="fp32")


def table(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)


def test_classes_are_what_the_engine_says(models: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", rows())
    result = score(models / "classes", source, tmp_path / "out.jsonl")
    found = lines(tmp_path / "out.jsonl")
    assert (result.rows, result.errors, result.shards, result.computed) == (50, 0, 1, 50)
    assert list(found[0]) == ["id", "text", "n", "label", "probability", "probabilities", *COUNTS]
    assert [{name: row[name] for name in ("id", "text", "n")} for row in found] == rows()
    for row, one in zip(found, engine(models / "classes").classify(TEXTS[:50]), strict=True):
        assert (row["label"], row["tokens"], row["error"]) == (one.label, one.tokens, None)
        assert row["probability"] == pytest.approx(one.probability, abs=1e-6)
        assert list(row["probabilities"]) == ["negative", "positive"]
    assert result.tokens == sum(row["tokens"] for row in found)


def test_labels_and_values(models: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", rows(9))
    score(models / "labels", source, tmp_path / "labels.jsonl")
    score(models / "value", source, tmp_path / "values.jsonl")
    for row, one in zip(lines(tmp_path / "labels.jsonl"), engine(models / "labels").classify(TEXTS[:9]), strict=True):
        assert row["labels"] == list(one.labels or ())
    for row, one in zip(lines(tmp_path / "values.jsonl"), engine(models / "value").classify(TEXTS[:9]), strict=True):
        assert row["value"] == pytest.approx(one.value, abs=1e-5)


def test_a_reranker_scores_pairs_of_columns_and_of_lines(models: Path, tmp_path: Path) -> None:
    pairs = [line.split("\t") for line in kinds.pair_lines(12)]
    source = write(tmp_path / "in.csv", [{"query": one, "document": other} for one, other in pairs])
    columns = {"text_column": "query", "pair_column": "document"}
    score(models / "score", source, tmp_path / "out.csv", **columns)
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    expected = engine(models / "score").score([(one, other) for one, other in pairs])
    assert [float(row["score"]) for row in found] == pytest.approx(expected.tolist(), abs=1e-5)
    lined = tmp_path / "in.txt"
    lined.write_text("".join(f"{one}\t{other}\n" for one, other in pairs) + "no tab\n")
    score(models / "score", lined, tmp_path / "out.jsonl", **columns)
    scored = lines(tmp_path / "out.jsonl")
    assert [row["score"] for row in scored[:-1]] == [float(row["score"]) for row in found]
    assert scored[-1]["error"] == "the row has no 'document'"
    with pytest.raises(DataError, match="is a reranker; name the document's column with --pair-column"):
        score(models / "score", source, tmp_path / "other.csv", text_column="query")


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet", "out.tsv"])
def test_embeddings_are_lists_and_fixed_size_in_parquet(name: str, models: Path, tmp_path: Path) -> None:
    texts = [*kinds.words(20), " ", "\u200b", *kinds.words(25)[20:]]
    source = tmp_path / "in.txt"
    source.write_text("\n".join(texts), encoding="utf-8")
    result = score(models / "embedding", source, tmp_path / name)
    assert (result.rows, result.errors, result.kept) == (27, 2, 1.0), "dense"
    good = [text for text in texts if text.strip(" \u200b")]
    expected = engine(models / "embedding").embed(good)
    if name == "out.parquet":
        found = table(tmp_path / name)
        assert str(found.schema.field("embedding").type).startswith("fixed_size_list")
        values = found.column("embedding").to_pylist()
    elif name == "out.tsv":
        with (tmp_path / name).open(newline="") as file:
            values = [json.loads(row["embedding"] or "null") for row in csv.DictReader(file, delimiter="\t")]
    else:
        values = [row["embedding"] for row in lines(tmp_path / name)]
    assert [i for i, value in enumerate(values) if value is None] == [20, 21]
    assert np.allclose([value for value in values if value is not None], expected, atol=1e-5)


def test_embeddings_of_fewer_numbers(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(kinds.words(9)), encoding="utf-8")
    score(models / "embedding", source, tmp_path / "out.parquet", dimensions=8)
    found = table(tmp_path / "out.parquet")
    assert found.schema.field("embedding").type.list_size == 8
    expected = engine(models / "embedding").embed(kinds.words(9), dimensions=8)
    assert np.allclose(found.column("embedding").to_pylist(), expected, atol=1e-5)
    with pytest.raises(ConfigError, match="dimensions = 33 is above 32"):
        score(models / "embedding", source, tmp_path / "other.parquet", dimensions=33)
    with pytest.raises(ConfigError, match="dimensions = 8 is of embeddings, and .* has none"):
        score(models / "classes", source, tmp_path / "other.parquet", dimensions=8)


FORMATS = ["jsonl", "jsonl.gz", "jsonl.xz", "jsonl.zst", "csv", "csv.gz", "tsv", "tsv.zst", "parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_output_follows_the_input_and_keeps_its_columns(name: str, models: Path, tmp_path: Path) -> None:
    source = write(tmp_path / f"in.{name}", rows(20))
    out = tmp_path / f"out.{name}"
    score(models / "classes", source, out)
    if name == "parquet":
        found = table(out)
        assert found.schema.field("n").type == "int64"
        kept = found.select(["id", "text", "n"]).to_pylist()
        assert kept == rows(20) and found.column("label").null_count == 0
    elif name.startswith("jsonl"):
        assert [{key: row[key] for key in ("id", "text", "n")} for row in lines(out)] == rows(20)
    else:
        read = csv.DictReader(unpacked(out).splitlines(), delimiter="," if name.startswith("csv") else "\t")
        assert [(row["id"], row["text"], int(row["n"])) for row in read] == [tuple(row.values()) for row in rows(20)]


@pytest.mark.parametrize("read", ["in.jsonl", "in.csv", "in.parquet", "in.txt"])
@pytest.mark.parametrize("written", ["jsonl", "csv.gz", "parquet"])
def test_any_input_may_become_any_output(read: str, written: str, models: Path, tmp_path: Path) -> None:
    if read == "in.txt":
        (tmp_path / read).write_text("\n".join(TEXTS[:20]), encoding="utf-8")
    else:
        write(tmp_path / read, rows(20))
    out = tmp_path / "out"
    score(models / "classes", tmp_path / read, out, format=written)
    if written == "parquet":
        texts = table(out).column("text").to_pylist()
    elif written == "jsonl":
        texts = [row["text"] for row in lines(out)]
    else:
        import gzip

        texts = [row["text"] for row in csv.DictReader(gzip.open(out, "rt", newline=""))]
    assert texts == TEXTS[:20]


@pytest.mark.parametrize("name", ["out.csv", "out.tsv"])
def test_line_ends_inside_of_texts_stay_inside(name: str, models: Path, tmp_path: Path) -> None:
    texts = ["good\rfilm", "good\r\nfilm", "good\nfilm", "film\r", '"good', "good\u2028film", "good\tfilm, bad"]
    source, out = write(tmp_path / "in.jsonl", [{"text": text, "n": 1} for text in texts]), tmp_path / name
    score(models / "classes", source, out)
    with out.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file, delimiter="," if name == "out.csv" else "\t", strict=True))
    assert [(row["text"], row["n"], row["error"]) for row in read] == [(text, "1", "") for text in texts]
    assert score(models / "classes", out, tmp_path / "again.csv", prefix="new_").errors == 0


def test_dates_and_bytes_of_parquet_are_plain_text_in_csv(models: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    day = datetime.datetime(2026, 1, 2, 3, 4, 5)
    columns = {"text": ["good film"], "day": [day], "raw": [b"ab"], "list": [[day.date()]], "odd": [float("nan")]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    score(models / "classes", tmp_path / "in.parquet", tmp_path / "out.csv")
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    expected = {"day": "2026-01-02 03:04:05", "raw": "YWI=", "list": '["2026-01-02"]', "odd": ""}
    assert {name: row[name] for name in expected} == expected


def test_columns_of_json_lines_are_all_found_where_a_table_is_written(models: Path, tmp_path: Path) -> None:
    given = [*rows(12), {"text": "good film", "late": [1, {"a": None}]}, {"text": "bad", "n": 0.5, "late": None}]
    source = write(tmp_path / "in.jsonl", given)
    score(models / "classes", source, tmp_path / "out.parquet")
    found = table(tmp_path / "out.parquet")
    assert found.column_names[:4] == ["id", "text", "n", "late"]
    assert found.column("n").to_pylist()[-3:] == [11.0, None, 0.5]
    assert found.column("late").to_pylist()[-2:] == ['[1, {"a": null}]', None]
    score(models / "classes", source, tmp_path / "out.csv")
    read = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert read[12]["late"] == '[1, {"a": null}]' and read[12]["n"] == ""


def test_bad_rows_get_an_error_and_nothing_else_happens(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LOOK", 5)  # what comes later is met only in the work
    bad = [
        b'{"id": 1}',
        b'{"text": 7, "big": 1e400, "n": 1.50}',
        b'{"text": " "}',
        b'{"text": "good", "label": 3}',
        b'{"text": "cut',
        b"[1, 2]",
        b'{"text": "caf\xe9"}',
        b'{"text": "half \\ud800"}',
        b'{"text": null}',
        b"{}",
        b"[" * 100_000,
    ]
    good = [json.dumps(row).encode() for row in rows(10)]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n\n".join([*good, *bad]) + b"\n")
    result = score(models / "classes", source, tmp_path / "out.jsonl")
    found = lines(tmp_path / "out.jsonl")
    assert (result.rows, result.errors) == (21, 11)
    assert [row["error"] for row in found[:10]] == [None] * 10
    for row, words in zip(
        found[10:],
        (
            "the row has no 'text'",
            "'text' is of type int; it must be a string",
            "the text is empty",
            "a column 'label' of its own, which results would replace; give a --prefix",
            "not valid JSON",
            "the line is a JSON list; each line must be one JSON object",
            "the byte 0xe9, which is not UTF-8",
            "half a character",
            "the row has no 'text'",
            "the row has no 'text'",
            "not valid JSON",
        ),
        strict=True,
    ):
        assert words in row["error"] and row["label"] is None
    assert '"big": 1e400, "n": 1.50, "label"' in unpacked(tmp_path / "out.jsonl")
    assert found[14]["text"] == '{"text": "cut'
    assert result.first_errors == ("in.jsonl, row 11: the row has no 'text'",)
    for name in ("out.parquet", "out.csv"):  # where every row must fit into columns
        assert score(models / "classes", source, tmp_path / name, prefix="p_").errors == 10


def test_rows_of_another_width_and_without_an_id_get_an_error(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,text\n1,good film\n2\n,bad film\n3,a,b\n")
    result = score(models / "classes", source, tmp_path / "out.csv", id_column="id")
    read = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert result.errors == 3
    errors = [row["error"] for row in read]
    assert errors[0] == "" and "1 fields, the header has 2" in errors[1]
    assert errors[2] == "the row has no 'id', which --id-column asks for"
    assert "3 fields" in errors[3] and read[3]["text"] == "3,a,b"
