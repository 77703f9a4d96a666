"""Where a run that is not finished keeps its state: beside the folder that appears when it is complete."""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from thresher.errors import RunError

SAVED = ("state", "study.journal", "shards")  # what an interrupted `prune`, `search` or `score` leaves behind
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REFUSED = FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG}
DEEPEST = "dense/" + "x" * 80  # files in a run have names of their own below its folder


def work_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def has_state(work: Path) -> bool:
    """Whether there is something to go on from."""
    return any((work / name).exists() for name in SAVED)


def expanded(path: str | Path) -> str:
    """With ~ as the home folder it stands for; as it is where there is no such user."""
    name = str(path)
    try:
        return str(Path(name).expanduser()) if name.startswith("~") else name
    except RuntimeError:
        return name


def path_problem(path: str | Path) -> str | None:
    """Why the system takes this for no path (too long, NUL, half a character); None where it does, there or not."""
    try:
        os.fspath(path).encode("utf-8")
        os.lstat(path)
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except ValueError:  # the only other that Python refuses itself
        return "it has a NUL character"
    return None


def folder_here(name: str | Path) -> Path | None:
    """The folder of that name, if there is one on this machine; text that cannot be a path names none."""
    path = Path(expanded(name))
    return path.resolve() if path_problem(path) is None and path.is_dir() else None


def refusal(error: BaseException, numbers: frozenset[int] = REFUSED) -> str | None:
    """Why the system takes no more (a full disk, no permission), whichever library tells; None for another error.

    Those written in Rust have exceptions of their own, with the system's number in the text.
    """
    found = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    return os.strerror(number) if number in numbers and number is not None else None


@contextmanager
def alone_at(out: Path) -> Iterator[None]:
    """Have the place of a run for oneself, from before the first check until the run is there.

    A second run into the same folder is refused at its start; the system lets go of the lock when a process ends,
    however it does. What could not be written there after hours of work is found out now. A run that fails before it
    has saved anything to go on from leaves nothing.
    """
    if not out.name or out.name == "..":
        yield  # no name of a folder, which is another rule's matter
        return
    work, parents = work_of(out), [folder for folder in out.absolute().parents if not _exists(folder)]
    fresh = False
    try:
        with _locked(out):
            fresh = not work.exists()
            yield
    except BaseException:
        if fresh and not has_state(work):
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        for folder in parents:  # those that were made for the lock, as far as nothing else is there now
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    # Longer than every other name that a run has beside its folder: if this one can be written, so can they.
    lock = out.with_name(f".{out.name}.thresher.lock")
    if problem := path_problem(out / DEEPEST) or path_problem(lock):
        raise RunError(f"cannot make {str(out)[:80]}: {problem}; choose another --out")
    above = next(folder for folder in out.absolute().parents if _exists(folder))
    held = None
    while held is None:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("a", encoding="utf-8")
        except OSError as error:
            # A file in the place of a folder "exists", which would not tell anybody what is wrong.
            why = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
            raise RunError(f"cannot make {out} in {above}: {why}; choose another --out") from error
        try:
            _lock(file, out)
            # Whoever held it before removes the file: a lock on a file that is gone keeps nobody out.
            with suppress(OSError):
                held = file if os.path.samestat(os.fstat(file.fileno()), lock.stat()) else None
        finally:
            if held is None:
                file.close()
    with held:
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()


def _lock(file: TextIO, out: Path) -> None:
    if sys.platform == "win32":  # which has no such locks
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(f"another run is being written to {out}; wait until it ends, or choose another --out") from error
    except OSError:  # nor have some network file systems
        pass


def _exists(folder: Path) -> bool:
    return os.path.lexists(folder)  # which takes every text for a path
