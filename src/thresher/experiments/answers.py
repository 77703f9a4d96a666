"""What finished runs say of every test row, in a small file beside the records: so that rows can be drawn later.

Results alone: predicted classes or values, and the labels that they are judged by, packed; no row's text.
"""

import base64
import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thresher.experiments.experiment import Key, Row, Setting, key_of

if TYPE_CHECKING:
    from thresher.tasks.task import Task

ANSWERS = "answers.jsonl"
PARTS = ("said", "truth")
DTYPES = {"classes": "<u1", "value": "<f2"}  # a class's number; a value as finely as half precision knows it


@dataclass(frozen=True)
class Answers:
    """said, truth: (rows,) of one run."""

    said: NDArray[Any]
    truth: NDArray[Any]


def answers_of(run: Path, key: Key, setting: Setting, *, split: str | None = None) -> Row | None:
    """What `unpacked` reads, of a finished run on its test rows; None where outputs are no class and no value."""
    from thresher.evaluation.quality import outputs_of
    from thresher.experiments.finished import opened

    task = _task(key["task"], setting.data_folder())
    if task.spec.means not in DTYPES:
        return None
    name = split or next(iter(task.test))
    with opened(run) as saved:
        length = saved.manifest["recipe"]["max_length"]
        outputs = outputs_of(saved.model, saved.tokenizer, task, split=name, max_length=length, pruned=True)
    said = outputs.argmax(axis=1) if task.spec.means == "classes" else outputs.reshape(-1)
    return packed(said, [row.label for row in task.test[name]], means=task.spec.means)


def packed(said: Any, truth: Any, *, means: str) -> Row:
    parts = (np.asarray(part).astype(DTYPES[means]).tobytes() for part in (said, truth))
    texts = (base64.b64encode(zlib.compress(part, 9)).decode("ascii") for part in parts)
    return {"means": means, **dict(zip(PARTS, texts, strict=True))}


def unpacked(line: Mapping[str, Any]) -> Answers:
    parts = (np.frombuffer(zlib.decompress(base64.b64decode(line[name])), DTYPES[line["means"]]) for name in PARTS)
    said, truth = (part.astype(np.float64) for part in parts)
    return Answers(said, truth)


def by_key(lines: Sequence[Row], names: Sequence[str]) -> dict[tuple[Any, ...], Answers]:
    """The last ones of a key count."""
    return {key: unpacked(line) for key, line in {key_of(line, names): line for line in lines}.items()}


@functools.lru_cache(maxsize=4)
def _task(name: str, data: Path) -> "Task":
    from thresher.tasks import load_task

    return load_task(name, data=data)
