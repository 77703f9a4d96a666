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

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors")


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
    """The commit of the source tree, with '+' when it has uncommitted changes; None outside a checkout."""
    here = Path(__file__).resolve().parent
    run = lambda *words: subprocess.run(("git", *words), cwd=here, capture_output=True, text=True, timeout=10)  # noqa: E731
    try:
        inside = run("rev-parse", "--show-prefix")
        if inside.returncode != 0 or not inside.stdout.strip().endswith("src/thresher/"):
            return None
        head = run("rev-parse", "--short=12", "HEAD")
        dirty = run("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else None


def device_name(device: str) -> str:
    """A name a reader recognises: the GPU's, or the processor's."""
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def provenance(*, device: str, seed: int | None) -> dict[str, Any]:
    """Everything needed to know where a number comes from."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv and sys.argv[0] else []
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(words),
        "device": device_name(device),
        "versions": versions(),
        "commit": commit(),
        "seed": seed,
    }


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a temporary name and rename it, so a reader never sees half a file."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
