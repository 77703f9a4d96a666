"""What is wrong with a whole file, a column or a place is one error, before any work."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.making import pack, rows, score, write
from tests.cli import tiny
from thresher.bulk.formats import format_of, list_inputs, plan_shards
from thresher.errors import ConfigError, DataError, ThresherError
from thresher.workplace import work_of


def refused(match: str, *args: Any, **given: Any) -> None:
    out = args[2]
    there = sorted(out.parent.iterdir())
    with pytest.raises(ThresherError, match=match):
        score(*args, **given)
    assert sorted(out.parent.iterdir()) == there, "a refusal leaves nothing behind"


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_a_wrong_column_is_named_with_those_there_are(name: str, models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / name, rows()), tmp_path / "out.jsonl"
    for option in ("text_column", "pair_column", "id_column"):
        way = option.replace("_", "-")
        match = f"has no column 'review'; available columns: 'id', 'text', 'n'; say which with --{way}"
        refused(match, models / "classes", source, out, **{option: "review"})
    refused("given twice", models / "classes", source, out, pair_column="text")


def test_names_that_results_have_need_a_prefix(models: Path, tmp_path: Path) -> None:
    for name in ("in.jsonl", "in.csv", "in.parquet"):
        source = write(tmp_path / name, [{"text": "good", "label": 1}])
        match = "has a column 'label', and so have the results; give theirs a --prefix, such as predicted_"
        refused(match, models / "classes", source, tmp_path / "out.jsonl")
        out = tmp_path / f"out.{name}"
        assert score(models / "classes", source, out, prefix="predicted_").errors == 0


def test_files_that_cannot_be_read_are_refused(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / "no.csv").write_text("")
    (tmp_path / "twice.csv").write_text("text,text\n")
    (tmp_path / "not.parquet").write_text("text")
    (tmp_path / "not.jsonl.gz").write_text("text")
    (tmp_path / "in.docx").write_text("text")
    (tmp_path / "empty").mkdir()
    for name, match in (
        ("gone.jsonl", "does not exist"),
        ("*.none", "does not exist"),
        ("no.csv", "is empty; its first line must name the columns"),
        ("twice.csv", "two columns named 'text'"),
        ("not.parquet", "cannot be read as Parquet"),
        ("not.jsonl.gz", "cannot be read"),
        ("in.docx", "unknown extension; it must be jsonl, csv, tsv, txt"),
        ("empty", "has no files to score"),
    ):
        refused(match, models / "classes", tmp_path / name, out)


def test_an_output_that_exists_is_never_replaced_unless_it_is_ours(models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    out.write_text("precious")
    for overwrite in (False, True):
        refused("exists and was not written by thresher score", models / "classes", source, out, overwrite=overwrite)
    out.unlink()
    out.mkdir()
    refused("exists as a folder; for one input --out names a file", models / "classes", source, out)
    out.rmdir()
    score(models / "classes", source, out)
    before = out.read_bytes()
    assert score(models / "classes", source, out).computed == 0
    refused("dial was 1.0 and is 2.0; give the same again, or start", models / "classes", source, out, dial=2.0)
    assert score(models / "classes", source, out, overwrite=True).computed == 50
    assert out.read_bytes() == before
    assert not work_of(out).exists()


def test_an_input_is_never_replaced(models: Path, tmp_path: Path) -> None:
    source, folder = write(tmp_path / "in.jsonl", rows(9)), tmp_path / "folder"
    score(models / "classes", source, tmp_path / "ours.jsonl")
    score(models / "classes", [source, tmp_path / "ours.jsonl"], folder, prefix="new_")
    (tmp_path / "link").symlink_to(folder)
    match = "would replace the input"
    given: Any = {"overwrite": True, "prefix": "newer_"}
    refused(match, models / "classes", tmp_path / "ours.jsonl", tmp_path / "ours.jsonl", **given)
    refused(match, models / "classes", tmp_path / "link", folder, **given)
    refused(match, models / "classes", folder / "in.jsonl", tmp_path / "link", **given)
    assert score(models / "classes", folder, folder / "in", prefix="newer_").rows == 18, "but beside them there is room"


def test_only_our_own_files_in_a_folder_are_replaced(models: Path, tmp_path: Path) -> None:
    source, out = [write(tmp_path / f"{name}.jsonl", rows(9)) for name in "ab"], tmp_path / "out"
    score(models / "classes", source, out)
    (out / "notes.md").write_text("precious")
    refused("out holds notes.md, which thresher score did not write", models / "classes", source, out, overwrite=True)
    assert score(models / "classes", source, out).computed == 0
    (out / "notes.md").unlink()
    assert score(models / "classes", source, out, overwrite=True).computed == 18


def test_a_folder_may_take_the_place_of_a_file_and_of_a_link(models: Path, tmp_path: Path) -> None:
    source, out = [write(tmp_path / f"{name}.jsonl", rows(9)) for name in "ab"], tmp_path / "out"
    score(models / "classes", source[0], out)
    score(models / "classes", source, out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["a.jsonl", "b.jsonl"]
    out.rename(tmp_path / "elsewhere")
    out.symlink_to(tmp_path / "elsewhere")
    score(models / "classes", source, out, overwrite=True, prefix="new_")
    assert not out.is_symlink() and (tmp_path / "elsewhere" / "a.jsonl").exists()
    score(models / "classes", source[0], out, overwrite=True)
    assert out.is_file()


def test_unfinished_work_of_another_command_is_left_alone(models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows(9)), tmp_path / "run"
    (work_of(out) / "state").mkdir(parents=True)
    for overwrite in (False, True):
        match = "holds another command's unfinished work"
        refused(match, models / "classes", source, out, overwrite=overwrite)
    assert (work_of(out) / "state").is_dir()


def test_a_pattern_gives_a_folder_even_where_it_matches_one_file(models: Path, tmp_path: Path) -> None:
    write(tmp_path / "a1.jsonl", rows(9))
    score(models / "classes", str(tmp_path / "a*.jsonl"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a1.jsonl"]


def test_settings_that_cannot_be_are_refused(models: Path, tmp_path: Path) -> None:
    source, model = write(tmp_path / "in.jsonl", rows()), models / "classes"
    out = tmp_path / "out.jsonl"
    refused("contradict each other", model, source, out, format="csv")
    refused("--format xls is not one of: jsonl, csv, tsv, parquet", model, source, out, format="xls")
    refused("text alone has no room for results", model, source, tmp_path / "out.txt")
    refused("inputs is empty", model, [], out)
    refused("max_length = 1 is below 4", model, source, out, max_length=1)
    refused("actors = 2 goes with --ray", model, source, out, actors=2)
    refused("part_rows = 0 is below 1", model, source, out, part_rows=0)
    refused("embedding model, which reads single texts", models / "embedding", source, out, pair_column="id")


def test_a_run_for_pairs_is_not_given_single_texts(models: Path, tmp_path: Path) -> None:
    source, texts = write(tmp_path / "in.jsonl", rows()), tmp_path / "texts.txt"
    texts.write_text("\n".join(text for text, _ in tiny.sentences(90)))
    call = "calibrate {model} --texts {texts} --agreement 0.9 --out {out}"
    tiny.succeeds(call, model=models / "classes", texts=texts, out=tmp_path / "run")
    match = "is for single texts, but was given pairs of texts"
    refused(match, tmp_path / "run", source, tmp_path / "out.jsonl", pair_column="id")


def test_what_needs_pyarrow_says_so(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(tmp_path / "in.jsonl", rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    match = r'needs the package pyarrow; run: pip install "thresher\[parquet\]"'
    refused(match, models / "classes", plain, tmp_path / "out.parquet")
    refused(match, models / "classes", plain, tmp_path / "out.jsonl.zst")
    monkeypatch.undo()
    source = pack(plain, tmp_path / "in.jsonl.zst")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(match, models / "classes", source, tmp_path / "out.jsonl")


def test_names_say_the_format() -> None:
    for name, found in (
        ("a.jsonl", "jsonl"),
        ("a.b.NDJSON.gz", "jsonl.gz"),
        ("a.csv.zst", "csv.zst"),
        ("a.txt.xz", "txt.xz"),
        ("a.parquet", "parquet"),
        ("a.parquet.gz", "None"),
        ("jsonl", "None"),
        ("a.gz", "None"),
    ):
        assert str(format_of(name)) == found


def test_folders_and_patterns_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "c.txt.gz", "_SUCCESS", ".hidden.csv", "notes.md"):
        (tmp_path / name).write_text("x")
    (tmp_path / "deeper.csv").mkdir()
    files, others = list_inputs([tmp_path])
    assert [file.name for file in files] == ["a.csv", "b.jsonl", "c.txt.gz"]
    assert others == ["notes.md"]
    files, _ = list_inputs([str(tmp_path / "*.jsonl"), tmp_path / "a.csv"])
    assert [file.name for file in files] == ["b.jsonl", "a.csv"]
    shards = plan_shards(list_inputs([tmp_path])[0], tmp_path / "out", wanted=None, as_folder=True)
    assert [shard.name for shard in shards] == ["a.csv", "b.jsonl", "c.jsonl.gz"]
    shards = plan_shards(list_inputs([tmp_path])[0], tmp_path / "out", wanted=format_of("x.parquet"), as_folder=True)
    assert [shard.name for shard in shards] == ["a.parquet", "b.parquet", "c.parquet"]
    with pytest.raises(DataError, match="would both be written to"):
        plan_shards([tmp_path / "a.csv", tmp_path / "x" / "a.csv"], tmp_path, wanted=None, as_folder=True)
    with pytest.raises(ConfigError):
        plan_shards([tmp_path / "a.csv"], tmp_path / "out.txt", wanted=None, as_folder=False)
