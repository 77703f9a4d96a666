"""A user's own files, as a run remembers them: the rows it held out, and those it was trained on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher.tasks.files import digest_of, load_file_task
from thresher.tasks.splits import fingerprint
from thresher.tasks.task import Example, Task

PLAIN = (None, "classes", "value")  # what a label column says by itself


def rows_held_out(description: Mapping[str, Any]) -> Task | None:
    """The test rows of a run's own files, as when it was made; None where they are not known, or not what they were.

    `description` is the run's task, as `Task.describe` wrote it.
    """
    task = read_again(description)
    if task is None:
        return None
    (split,) = task.test
    kind = "held out of" if split == "held_out" else "that were its test rows beside"
    source = f"{len(task.test[split]):,} rows {kind} {description['files']['train']['path']} when the run was made"
    # The other rows are not needed, but for answers, which are withheld by a threshold that selection rows choose.
    kept = task.selection if task.spec.means == "span" else []
    return replace(task, train=[], selection=kept, source=source)


def seen_in_training(description: Mapping[str, Any], test: Path, rows: list[Example]) -> list[str]:
    """What is to be said of test rows that the run was trained on, or chosen by."""
    files = _files_of(description)
    if "train" not in files:
        return []
    if digest_of(test) == files["train"][1]:
        return [
            f"warning: {test} is the file that the run was trained on, so what is measured says little of new rows; "
            "without --test, the rows that were held out of it are taken"
        ]
    task = read_again(description)
    known = set() if task is None else {fingerprint(row) for row in (*task.train, *task.selection)}
    seen = sum(fingerprint(row) in known for row in rows)
    if not seen:
        return []
    return [f"warning: {seen:,} of the {len(rows):,} rows of {test} are rows that the run was trained on or chosen by"]


def _files_of(description: Mapping[str, Any]) -> dict[str, tuple[Path, str]]:
    """Path and sha256 of the files train, test and selection, as far as the run remembers them."""
    files = description.get("files")
    found = files.items() if isinstance(files, dict) else ()
    return {
        name: (Path(str(about["path"])), str(about["sha256"]))
        for name, about in found
        if isinstance(about, dict) and {"path", "sha256"} <= set(about)
    }


def read_again(description: Mapping[str, Any]) -> Task | None:
    """A run's task read from its own files once more; None where these are not known, or not what they were."""
    files, columns, labels = _files_of(description), description.get("columns"), description.get("labels")
    if "train" not in files or not isinstance(columns, dict) or not isinstance(labels, list):
        return None
    unchanged = all(path.is_file() and digest_of(path) == digest for path, digest in files.values())
    if not unchanged:
        return None
    kind: dict[str, Any] = {"regression": not labels}
    if description.get("means") not in PLAIN:
        kind = {"means": description["means"], "separator": description.get("separator")}
        kind["group_column"] = columns.get("group")
    paths: Any = {name: path for name, (path, _) in files.items() if name in ("train", "test", "selection")}
    return load_file_task(
        **paths,
        text_column=columns["text"],
        pair_column=columns.get("pair"),
        label_column=columns["label"],
        class_names=labels or None,
        **kind,
    )
