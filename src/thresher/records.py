"""What a measurement is made of: where it was made, with which versions, from which commit."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from thresher.errors import RunError, ThresherError
from thresher.hardware import device_name

ARCHIVED = "$Format:%H$"  # git archive puts the commit here: sources that travel without their history know it still
LARGEST_JSON = 64 * 2**20  # bytes; a description with a million labels has half of that
NO_SHARES = ("null_threshold",)  # metrics that are plain numbers
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors")


def metric_text(name: str, value: float) -> str:
    """A metric for people: shares and correlations times 100, all others as they are."""
    return f"{value if name in NO_SHARES else 100 * value:.2f}"


def versions() -> dict[str, str]:
    """Versions of Python, thresher and the packages that decide the numbers."""
    found = {"python": platform.python_version(), "thresher": thresher_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def thresher_version() -> str:
    """The installed version, or 'source' when the package runs from its source tree."""
    try:
        return metadata.version("thresher")
    except metadata.PackageNotFoundError:
        return "source"


def commit() -> str | None:
    """The commit of the source tree, with '+' when it has uncommitted changes; None where neither checkout nor archive
    tells."""
    if not ARCHIVED.startswith("$"):
        return ARCHIVED[:12]
    here = Path(__file__).resolve().parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(("git", *words), cwd=here, capture_output=True, text=True, timeout=10)

    try:
        inside = git("rev-parse", "--show-prefix")
        if inside.returncode != 0 or not inside.stdout.strip().endswith("src/thresher/"):
            return None
        head = git("rev-parse", "--short=12", "HEAD")
        dirty = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else None


def provenance(*, device: str, seed: int | None) -> dict[str, Any]:
    """Everything needed to know where a number comes from."""
    script = Path(sys.argv[0]).name if sys.argv else ""
    # python -m thresher: the file is __main__.py, the command is thresher
    words = ["thresher" if script == "__main__.py" else script, *sys.argv[1:]] if script else []
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(words),
        "device": device_name(device),
        "versions": versions(),
        "commit": commit(),
        "seed": seed,
    }


def read_json(path: Path, *, error: type[ThresherError]) -> Any:
    """What a JSON file says; whatever is wrong with it is one `error`, also where it is hostile (deep, huge)."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise error(f"{path} has {size:,} bytes; such a file has at most {LARGEST_JSON:,}, so it is something else")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}; check its permissions") from problem
    except RecursionError as problem:
        raise error(f"{path} is not valid JSON: its lists or tables lie too deep in one another") from problem
    except ValueError as problem:  # also bytes that are not UTF-8, and numbers of thousands of digits
        raise error(f"{path} is not valid JSON: {problem}") from problem


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a temporary name and rename it, so a reader never sees half a file."""
    write_text(path, _json_text(value, indent=2))


def _json_text(value: Any, *, indent: int | None = None) -> str:
    """As people can read it; half characters, which the words of a command may have, are escaped as JSON has them."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_appendable(path: Path) -> None:
    """Find out before any work that records can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise RunError(f"cannot write records to {path}: {error.strerror}; name another file") from error


def append_record(path: Path, row: dict[str, Any]) -> None:
    """One line of JSON, on the disk when this returns, or nothing: half a line, which a full disk leaves, would spoil
    the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_json_text(row))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if path.exists():
            os.truncate(path, size)
        raise
