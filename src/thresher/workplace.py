"""Where a run that is not finished keeps its state: beside the folder that appears when it is complete."""

import os
from pathlib import Path

SAVED = ("state", "study.journal")  # what an interrupted `prune` and an interrupted `search` leave behind


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
