"""Whether work that was begun is still the same work: fingerprints of inputs and runs, and what differs."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thresher.text import shown
from thresher.workplace import folder_here

WHOLE = 256 * 2**20  # bytes; a larger input is known by samples of it and the time of its last change
SAMPLES, SAMPLE = 64, 2**16
NO_ANSWERS = ("dense", "serving.json")  # what of a run says nothing about its answers


def file_fingerprint(path: Path) -> dict[str, Any]:
    """What an input is known by: its name, size, and a digest of it, or of samples where it is large."""
    about = path.stat()
    with path.open("rb") as file:
        if about.st_size <= WHOLE:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            found = hashlib.sha256(str(about.st_mtime_ns).encode())
            for number in range(SAMPLES):
                file.seek(number * (about.st_size - SAMPLE) // (SAMPLES - 1))
                found.update(file.read(SAMPLE))
            digest = f"samples {found.hexdigest()}"
    return {"name": path.name, "bytes": about.st_size, "sha256": digest}


def run_fingerprint(run: str | Path) -> str:
    """What a run is known by: all its files, without the dense model that it may hold and the speeds that were measured
    with it; a hub's name is all we know of it."""
    folder = folder_here(run)
    if folder is None:
        return f"hub {run}"
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if (
            path.is_file()
            and inner.parts[0] not in NO_ANSWERS
            and not any(part.startswith(".") for part in inner.parts)
        ):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.update(f"{inner.as_posix()} {digest}\n".encode("utf-8", errors="surrogateescape"))
    return found.hexdigest()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """In words, what differs between two descriptions of work; None where nothing does."""
    for name in dict.fromkeys((*before, *now)):
        one, other = before.get(name), now.get(name)
        if one == other:
            continue
        if name == "run":
            return "the run's files have changed"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if "sha256" in one and one.get("name") == other.get("name"):
                return f"the input {one['name']} has changed"
            return difference(one, other)
        return f"{name.replace('_', ' ')} was {shown(one)} and is {shown(other)}"
    return None
