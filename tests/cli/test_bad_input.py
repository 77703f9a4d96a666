"""Bad input to the command line: one line that names the value and the way out, an exit code, and nothing written.

Exit code 2 means the command or its settings are wrong, 1 that something they point to is.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.bad import TABLE
from tests.cli.bad.case import PRUNE, Bad
from tests.cli.conftest import Stock


def places(tmp: Path, stock: Stock, run: Path) -> dict[str, Path]:
    return {"head": stock.head, "bare": stock.bare, "rows": stock.rows, "test": stock.test, "run": run, "tmp": tmp}


def make(bad: Bad, tmp: Path, stock: Stock, run: Path) -> None:
    for name, content in bad.files.items():
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    bad.prepare(tmp, stock, run)


def check(done: tiny.Said, bad: Bad) -> None:
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.err
    for words in bad.says:
        assert words in lines[0]
    assert done.code == bad.code
    assert done.out == ""


def test_the_table_is_long_and_every_case_has_a_name_of_its_own() -> None:
    names = [bad.name for bad in TABLE]
    assert len(names) >= 220 and len(set(names)) == len(names)


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name.replace(" ", "-"))
def test_bad_input_is_one_line_and_leaves_nothing(
    bad: Bad, tmp_path: Path, stock: Stock, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(bad, tmp_path, stock, finished)
    before = tiny.tree(tmp_path)
    done = tiny.thresher(bad.command, **places(tmp_path, stock, finished))
    check(done, bad)
    assert tiny.tree(tmp_path) == before


def test_cuda_where_there_is_none(
    tmp_path: Path, stock: Stock, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for command in (PRUNE + " --device cuda", "eval {run} --test {test} --device cuda"):
        bad = Bad("no CUDA", command, ("device cuda is not available", "--device cpu", "thresher doctor"))
        check(tiny.thresher(command, **places(tmp_path, stock, finished)), bad)
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("prnue", "prnue"),
        ("prune", "Missing argument"),
        ("prune {head} --train {rows}", "--out"),
        ("prune {head} --train {rows} --out {tmp}/out --colour red", "--colour"),
        ("prune {head} --train {rows} --out {tmp}/out --batch-size many", "--batch-size"),
        ("prune {head} --train {rows} --out {tmp}/out --target-flops half", "--target-flops"),
        ("explain {run}", "Missing argument"),
        ("demo --out {tmp}/out --seed -1", "--seed"),
        ("doctor now", "now"),
    ],
)
def test_usage_errors_are_typers(command: str, says: str, tmp_path: Path, stock: Stock, finished: Path) -> None:
    done = tiny.thresher(command, **places(tmp_path, stock, finished))
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize(
    "bad",
    [
        Bad("setting", PRUNE + " --lr 0", ("lr = 0.0",), 2),
        Bad("model", "prune {tmp}/no --train {rows} --out {tmp}/out", ("/no does not exist",)),
        Bad("run", "eval {head} --test {test}", ("not a thresher run",)),
    ],
    ids=lambda bad: bad.name,
)
def test_the_same_from_outside(bad: Bad, tmp_path: Path, stock: Stock) -> None:
    """The installed program, warnings and all: nothing but the one line may reach the terminal."""
    words = [word.format(**places(tmp_path, stock, tmp_path)) for word in bad.command.split()]
    done = subprocess.run((sys.executable, "-m", "thresher", *words), capture_output=True, text=True)
    check(tiny.Said(done.returncode, done.stdout, done.stderr), bad)
    assert tiny.tree(tmp_path) == set()
