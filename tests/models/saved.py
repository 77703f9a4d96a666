"""A saved run to look into and to damage."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from thresher.models.checkpoint import MANIFEST

THRESHOLDS = (-math.inf, 0.1, 0.9, math.inf)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def edit(folder: Path, file: str = MANIFEST, **changes: Any) -> None:
    values = json.loads((folder / file).read_text())
    for name, value in changes.items():
        if value is None:
            del values[name]
        else:
            values[name] = value
    (folder / file).write_text(json.dumps(values))


def refused(kind: type[Exception], *parts: str) -> Any:
    """One line that says all of this, in this order."""
    return pytest.raises(kind, match="^" + ".*".join(re.escape(part) for part in ("", *parts)) + ".*$")
