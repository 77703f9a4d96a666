"""The place that a run is written to: taken by one command at a time, and clean after a full disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.errors import CheckpointError
from thresher.models.checkpoint import load, save
from thresher.workplace import alone_at

PRUNE = f"prune {{model}} --train {{rows}} --out {{out}} {tiny.QUICK}"


@contextmanager
def full_disk(*, at: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: the system says so as it does of a full disk, to every library."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "command",
    [
        PRUNE,
        "search {model} --train {rows} --out {out} --max-drop 1%",
        "calibrate {model} --texts {rows} --out {out} --overwrite",
        "quantize {run} --train {rows} --out {out} --overwrite",
        "demo --out {out}",
    ],
    ids=lambda command: command.split()[0],
)
def test_a_place_that_another_run_is_being_written_to(
    command: str, stock: Stock, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with alone_at(out):
        before = tiny.tree(tmp_path)
        done = tiny.thresher(command, model=stock.head, rows=stock.rows, run=finished, out=out)
        assert done.code == 1 and len(done.err.splitlines()) == 1, done.err
        assert f"another run is being written to {out}; wait until it ends, or choose another --out" in done.err
        assert tiny.tree(tmp_path) == before


def test_further_processes_of_one_run_leave_the_place_to_the_first(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with alone_at(tmp_path / "run"):
        done = tiny.thresher(PRUNE + " --lr 0", model=stock.head, rows=stock.rows, out=tmp_path / "run")
    assert done.code == 2, "it got as far as its settings"


def test_a_run_for_which_there_is_no_room(stock: Stock, tmp_path: Path) -> None:
    """The first file of its state is too large already: nothing to go on from, so nothing is left."""
    with full_disk(at=20_000):
        done = tiny.thresher(PRUNE, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    lines = done.err.splitlines()
    assert done.code == 1 and len(lines) == 1, done.err
    assert "File too large; free some space, or choose another folder" in lines[0] and "Traceback" not in done.err
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize("at", [1, 1000, 20_000])
def test_what_was_saved_before_stays_whole(finished: Path, tmp_path: Path, at: int) -> None:
    """Whichever file it is, of weights, tokenizer or our own, that finds the disk full."""
    found = load(finished)
    save(found.model, found.tokenizer, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with (
        pytest.raises(CheckpointError, match=r"^cannot write .*run: File too large; free some space"),
        full_disk(at=at),
    ):
        save(found.model, found.tokenizer, tmp_path / "run")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
