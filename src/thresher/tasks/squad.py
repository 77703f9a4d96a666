"""SQuAD 2.0 and 1.1 from their official files, and the split of one that comes alone."""

import hashlib
import importlib
from pathlib import Path
from typing import Any

from thresher.errors import DataError
from thresher.tasks.questions import QuestionColumns, question_rows, without_misplaced
from thresher.tasks.readers import Table, read_table
from thresher.tasks.splits import counted, hold_out_selection, query_of
from thresher.tasks.task import Example, Task, TaskSpec

SQUAD_TASKS: dict[str, TaskSpec] = {
    name: TaskSpec(name, "question", "context", (), ("f1",), label_column="answers", means="span")
    for name in ("squad_v2", "squad")
}
ENDINGS = (".json", ".json.xz", ".json.gz")
STEMS = {"train": ("train",), "selection": ("selection",), "validation": ("dev", "validation", "test")}
# Of the articles of a development set without a training set: what is below is the part's.
PARTS = (("validation", 0.3), ("selection", 0.5), ("train", 1.0))


def load_squad(name: str, data_dir: Path | None) -> Task:
    """Load from `data_dir`/`name`/{train,dev}*.json[.xz|.gz], or from the hub without a folder.

    Selection rows are those of a selection*.json, or whole articles of the training rows. A folder with nothing but a
    development set is split by article into train, selection and test: the hash of a title says where it goes.
    """
    spec = SQUAD_TASKS[name]
    tables = _from_hub(name) if data_dir is None else _from_folder(name, data_dir / name)
    splits, notes = {}, []
    for split, table in tables.items():
        cleaned, lost, questions = without_misplaced(table)
        splits[split] = question_rows(cleaned, QuestionColumns())
        gone = f", {counted(lost, 'answer')} not where the file says and {questions} questions left out" if lost else ""
        notes.append(f"{split} {counted(len(splits[split]), 'question')}{gone}")
    if "train" not in splits:
        splits = by_article(splits["validation"])
        parts = ", ".join(f"{len(rows):,} {part}" for part, rows in splits.items())
        notes.append(f"no training set, so its articles are split by the hash of their titles: {parts}")
    tests = {"validation": splits["validation"]}
    kept, selection = splits["train"], splits.get("selection", [])
    if not selection:
        kept, selection, _ = hold_out_selection(kept, tests.values(), key=query_of)
        notes.append(f"{counted(len(selection), 'training question')} for selection, whole articles")
    if not kept or not selection or not tests["validation"]:
        raise DataError(f"task {name} has too few articles to split; give at least three, or a training set")
    origin = f"the hub ({HUB[name]})" if data_dir is None else str(data_dir / name)
    return Task(spec, kept, selection, tests, f"{name} from {origin}: {'; '.join(notes)}")


def by_article(rows: list[Example]) -> dict[str, list[Example]]:
    """train, selection and validation: rows of an article stay together."""
    found: dict[str, list[Example]] = {"train": [], "selection": [], "validation": []}
    for row in rows:
        share = int(hashlib.sha256(str(row.group).encode("utf-8", "surrogatepass")).hexdigest()[:8], 16) / 16**8
        found[next(part for part, below in PARTS if share < below)].append(row)
    return found


def _from_folder(name: str, folder: Path) -> dict[str, Table]:
    if not folder.is_dir():
        raise DataError(f"{folder.parent} has no folder '{name}'; it must hold {name}/train*.json and {name}/dev*.json")
    tables = {}
    for split, stems in STEMS.items():
        files = sorted(f for stem in stems for f in folder.glob(f"{stem}*") if f.name.endswith(ENDINGS))
        if len(files) > 1:
            raise DataError(f"{folder} has more than one {split} file: {', '.join(f.name for f in files)}; keep one")
        if files:
            tables[split] = read_table(files[0])
    if "validation" not in tables:
        raise DataError(f"{folder} has no file dev*.json (or .json.xz, .json.gz); add it, as SQuAD publishes it")
    return tables


HUB = {"squad_v2": "rajpurkar/squad_v2", "squad": "rajpurkar/squad"}


def _from_hub(name: str) -> dict[str, Table]:
    try:
        datasets: Any = importlib.import_module("datasets")
        found = datasets.load_dataset(HUB[name])
    except Exception as error:  # not installed, or one of the hub's dozens of kinds for "not reachable"
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(
            f"task {name} cannot be loaded from the hub ({reason}); it needs the network and pip install "
            f'"thresher[hub]"; or give --data DIR, in Python data=DIR, with {name}/dev*.json'
        ) from error
    tables = {}
    for split in ("train", "validation"):
        rows = [dict(row) for row in found[split]]
        tables[split] = Table(Path(HUB[name], split), tuple(rows[0]) if rows else (), rows, None)
    return tables
