"""thresher score as a person meets it: a command, a table of 80 columns, one JSON line, one line for an error."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.cli.tiny import succeeds, thresher
from thresher.cli import app
from thresher.workplace import work_of

CALL = "score {model} {rows} --out {out} --device cpu --dtype fp32 --prefix p_"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "scored.csv"


def test_a_file_is_scored_and_summed_up_in_80_columns(finished: Path, stock: Stock, out: Path) -> None:
    done = succeeds(CALL, model=finished, rows=stock.test, out=out)
    assert max(map(len, done.out.replace(str(out), "OUT").splitlines())) <= 80
    for words in ("rows", "errors", "texts/s", "tokens kept", "seconds", "1 file, classes, cpu, fp32"):
        assert words in done.out
    assert "100%  16 rows" in done.err and "texts/s" in done.err and "0:00:00 left" in done.err
    lines = out.read_text().splitlines()
    assert lines[0] == "text,label,p_label,p_probability,p_probabilities,p_tokens,p_kept,p_truncated,p_error"
    assert len(lines) == 17
    manifest = json.loads(out.with_name("scored.csv.manifest.json").read_text())
    assert manifest["rows"] == 16 and manifest["shards"][0]["input"]["name"] == "test.csv"
    again = succeeds(CALL, model=finished, rows=stock.test, out=out)
    assert f"{out} is complete; there was nothing to do" in again.err.replace("\n", "")


def test_json_is_one_line_with_errors_by_row(finished: Path, tmp_path: Path, out: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "good film"}\n{"text": ""}\n{"tex\n', encoding="utf-8")
    done = succeeds(CALL + " --json", model=finished, rows=rows, out=out.with_suffix(".jsonl"))
    found = done.json()
    assert (found["rows"], found["errors"], found["computed"], found["means"]) == (3, 2, 3, "classes")
    assert found["first_errors"] == ["rows.jsonl, row 2: the text is empty; give at least one word"]
    assert {"texts_per_s", "seconds", "tokens", "kept", "command", "versions"} <= set(found)
    assert "2 rows have an error" in done.err


def test_folders_and_several_files_become_folders(finished: Path, stock: Stock, tmp_path: Path) -> None:
    call = CALL.replace("{rows}", "{rows} {test}") + " --format jsonl.gz"
    succeeds(call, model=finished, rows=stock.rows, test=stock.test, out=tmp_path / "both")
    assert tiny.tree(tmp_path / "both") == {"rows.jsonl.gz", "test.jsonl.gz"}


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ("--text-column review", 1, "has no column 'review'; available columns: 'text', 'label'"),
        ("--max-length 2", 2, "max_length = 2 is below 4"),
        ("--actors 2", 2, "actors = 2 goes with --ray"),
        ("--ray here", 2, "--ray here is no address; leave it out, or give auto, HOST:PORT or ray://HOST:PORT"),
        ("--dtype fp7", 2, "fp7"),
        ("--device tpu", 2, "tpu"),
        ("--format xml", 2, "--format xml is not one of: jsonl, csv, tsv, parquet"),
    ],
)
def test_what_is_wrong_is_one_line(finished: Path, stock: Stock, out: Path, more: str, code: int, words: str) -> None:
    done = thresher(CALL.replace("--dtype fp32 ", "") + " " + more, model=finished, rows=stock.test, out=out)
    assert done.code == code
    assert words in done.err and "Traceback" not in done.err and len(done.err.splitlines()) == 1
    assert not out.exists() and not work_of(out).exists()


def test_an_interruption_says_how_to_go_on(
    finished: Path, stock: Stock, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thresher.bulk import scorer

    def stop(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scorer, "answer", stop)
    done = thresher(CALL, model=finished, rows=stock.test, out=out)
    assert done.code == 130
    assert f"interrupted; {work_of(out)} has what is done, if anything; the same command goes on" in done.err
    monkeypatch.undo()
    succeeds(CALL, model=finished, rows=stock.test, out=out)


@pytest.mark.parametrize(
    ("words", "ray", "inputs"),
    [
        (["run", "a", "b", "--out", "o"], None, 2),
        (["run", "a", "--out", "o", "--ray"], "local", 1),
        (["run", "a", "--ray", "--out", "o"], "local", 1),
        (["run", "a", "--out", "o", "--ray", "auto"], "auto", 1),
        (["run", "a", "--out", "o", "--ray=ray://head:10001", "--actors", "3"], "ray://head:10001", 1),
    ],
)
def test_an_address_may_follow_ray(words: list[str], ray: str | None, inputs: int) -> None:
    programs: Any = typer.main.get_command(app)
    given = programs.commands["score"].make_context("score", words).params
    assert given["ray"] == ray and len(given["inputs"]) == inputs
