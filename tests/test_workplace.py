"""The place of a run: for one at a time, checked before any work, and left clean."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thresher import workplace
from thresher.errors import RunError
from thresher.workplace import alone_at, expanded, folder_here, path_problem, refusal

HOLDS = """
import sys
from pathlib import Path
from thresher.workplace import alone_at
with alone_at(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    with alone_at(out):
        with pytest.raises(
            RunError, match=r"another run is being written to .*first; wait until it ends, or choose an"
        ):
            with alone_at(out):
                raise AssertionError("two at once")
        with alone_at(tmp_path / "runs" / "other"):
            pass
    with alone_at(out):
        out.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "first"], "and no lock is left"


def test_another_process_is_refused_and_a_crash_lets_go(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        (sys.executable, "-c", HOLDS, str(out)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another run is being written"), alone_at(out):
            pass
        holder.kill()  # no clean-up of its own
    with alone_at(out):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_file_that_is_gone_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits opens the file just before its holder removes it."""
    real, lost = workplace._lock, []

    def lock(file: object, out: Path) -> None:
        real(file, out)  # type: ignore[arg-type]  # as it came
        if not lost:
            lost.append((tmp_path / ".run.thresher.lock").unlink())

    monkeypatch.setattr(workplace, "_lock", lock)
    with alone_at(tmp_path / "run"):
        assert lost and (tmp_path / ".run.thresher.lock").exists()
        with pytest.raises(RunError, match="another run"), alone_at(tmp_path / "run"):
            pass


def test_what_fails_leaves_nothing_unless_there_is_something_to_go_on_from(tmp_path: Path) -> None:
    out, work = tmp_path / "a" / "b" / "run", tmp_path / "a" / "b" / "run.partial"
    with pytest.raises(OSError, match="full"), alone_at(out):
        work.mkdir(parents=True)
        (work / "remembered.json").touch()
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="full"), alone_at(out):
        (work / "state").mkdir(parents=True)
        raise OSError("full")
    assert (work / "state").is_dir()
    (work / "state").rmdir()
    with pytest.raises(OSError, match="full"), alone_at(out):
        raise OSError("full")
    assert work.is_dir(), "it was there before"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 300, "file name too long"),
        ("x" * 245, "file name too long"),  # the folder could be made, but not the temporary one beside it
        ("deep/" * 1000 + "run", "file name too long"),
        ("a\x00b", "it has a NUL character"),
        ("a\udc80", "it is not valid Unicode"),
        ("file/run", "Not a directory"),
    ],
    ids=["long", "nearly-long", "deep", "nul", "surrogate", "below-a-file"],
)
def test_places_where_no_run_can_be_made(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=rf"^cannot make .*{says}; choose another --out$"), alone_at(tmp_path / name):
        raise AssertionError("the work began")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_of_usual_length_is_no_problem(tmp_path: Path) -> None:
    with alone_at(tmp_path / ("x" * 230)):
        pass


def test_paths(tmp_path: Path) -> None:
    assert path_problem(tmp_path) is None and path_problem(tmp_path / "absent") is None
    assert path_problem("x" * 5000) == "file name too long"
    assert expanded("~no-such-user-here/a") == "~no-such-user-here/a"
    assert expanded("~/a") == str(Path.home() / "a")
    assert folder_here(str(tmp_path)) == tmp_path.resolve()
    for name in ("x" * 5000, "a\x00", "~no-such-user-here", "\udc80", str(tmp_path / "absent")):
        assert folder_here(name) is None


def test_which_errors_are_the_disks() -> None:
    class RustError(Exception):
        pass

    assert refusal(OSError(28, "x")) == os.strerror(28)
    assert refusal(RustError("I/O error: No space left on device (os error 28)")) == os.strerror(28)
    assert refusal(PermissionError(13, "x")) == os.strerror(13)
    for other in (FileNotFoundError(2, "x"), ValueError("28"), RustError("broken (os error 2)"), OSError("plain")):
        assert refusal(other) is None
