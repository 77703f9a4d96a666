"""The paper's GLUE tasks, from a folder of JSON lines or from the Hugging Face hub."""

import importlib
from pathlib import Path
from typing import Any

from thresher.errors import DataError
from thresher.tasks.labels import as_number
from thresher.tasks.phrases import hold_out_whole
from thresher.tasks.readers import Table, read_table
from thresher.tasks.splits import SELECTION_AT_MOST, SELECTION_SHARE, counted, hold_out, hold_out_selection, leak_note
from thresher.tasks.task import Example, Task, TaskSpec

_ENTAILED = ("entailment", "not_entailment")

GLUE_TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec("mnli", "premise", "hypothesis", ("entailment", "neutral", "contradiction"), ("accuracy",)),
        TaskSpec("qnli", "question", "sentence", _ENTAILED, ("accuracy",)),
        TaskSpec("sst2", "sentence", None, ("negative", "positive"), ("accuracy",)),
        TaskSpec("rte", "sentence1", "sentence2", _ENTAILED, ("accuracy",)),
        TaskSpec("qqp", "question1", "question2", ("not_duplicate", "duplicate"), ("accuracy", "f1")),
        TaskSpec("mrpc", "sentence1", "sentence2", ("not_equivalent", "equivalent"), ("accuracy", "f1")),
        TaskSpec("stsb", "sentence1", "sentence2", (), ("pearson", "spearman")),
    )
}

# Published rows of train and of each reported split, by which a partial copy is recognised and named.
PUBLISHED_ROWS: dict[str, dict[str, int]] = {
    "mnli": {"train": 392_702, "matched": 9_815, "mismatched": 9_832},
    "qnli": {"train": 104_743, "validation": 5_463},
    "sst2": {"train": 67_349, "validation": 872},
    "rte": {"train": 2_490, "validation": 277},
    "qqp": {"train": 363_846, "validation": 40_430},
    "mrpc": {"train": 3_668, "validation": 408},
    "stsb": {"train": 5_749, "validation": 1_500},
}
HUB_NAME = "nyu-mll/glue"
ENDINGS = (".jsonl", ".jsonl.xz", ".jsonl.gz")
# Tasks whose folder may lack validation rows; for the others that is more likely a mistake than a choice.
MAY_HOLD_OUT = ("qqp",)
OF_PHRASES = ("sst2",)  # trained on phrases of the sentences, tested on sentences


def load_glue(name: str, data_dir: Path | None) -> Task:
    """Load a GLUE task from `data_dir`/`name`/{train,validation}*.jsonl[.xz|.gz], or from the hub without a folder.

    GLUE's own test labels are not public: the reported test splits are the validation rows, as in the paper.
    """
    if name not in GLUE_TASKS:
        raise DataError(f"unknown task '{name}'; the GLUE tasks are: {', '.join(GLUE_TASKS)}")
    spec = GLUE_TASKS[name]
    tables = _from_hub(name) if data_dir is None else _from_folder(name, data_dir)
    splits = {split: _examples(table, spec) for split, table in tables.items()}
    notes = [_described(name, split, len(rows)) for split, rows in splits.items()]
    train = splits.pop("train")
    if not splits:
        train, held = hold_out(train, share=SELECTION_SHARE, at_most=SELECTION_AT_MOST)
        splits = {"held_out": held}
        verb = "is" if len(held) == 1 else "are"
        notes.append(f"no validation rows, so {counted(len(held), 'training row')} {verb} held out by hash as test")
    kept, selection, left_out, leaked = (
        hold_out_whole(train, splits.values()) if name in OF_PHRASES else ([], [], [], 0)
    )
    if not selection:
        kept, selection, leaked = hold_out_selection(train, splits.values())
    if not kept or not selection or not all(splits.values()):
        raise DataError(f"{tables['train'].path} has too few different rows to split; give at least three")
    origin = f"the hub ({HUB_NAME})" if data_dir is None else str(data_dir / name)
    pieces = f", {counted(len(left_out), 'row')} left out as pieces of these" if left_out else ""
    notes.append(f"{counted(len(selection), 'training row')} for selection{pieces}{leak_note(leaked)}")
    return Task(spec, kept, selection, splits, f"GLUE {name} from {origin}: {'; '.join(notes)}", left_out)


def _described(name: str, split: str, rows: int) -> str:
    published = PUBLISHED_ROWS[name].get(split, rows)
    return (
        f"{split} {counted(rows, 'row')}" if rows >= published else f"{split} {rows:,} of {published:,} rows (partial)"
    )


def _file_stems(name: str) -> dict[str, str]:
    """The start of each split's file name, by the split's name here."""
    reported = ("matched", "mismatched") if name == "mnli" else ("validation",)
    return {"train": "train", **{s: s if s == "validation" else f"validation_{s}" for s in reported}}


def _from_folder(name: str, data_dir: Path) -> dict[str, Table]:
    folder = data_dir / name
    if not folder.is_dir():
        raise DataError(f"{data_dir} has no folder '{name}'; it must hold {name}/train*.jsonl (also .xz, .gz)")
    tables = {}
    for split, stem in _file_stems(name).items():
        files = sorted(path for path in folder.glob(f"{stem}*") if path.name.endswith(ENDINGS))
        if len(files) > 1:
            raise DataError(f"{folder} has more than one {split} file: {', '.join(f.name for f in files)}; keep one")
        if files:
            tables[split] = read_table(files[0])
        elif split == "train" or name not in MAY_HOLD_OUT:
            raise DataError(f"{folder} has no file {stem}*.jsonl (or .jsonl.xz, .jsonl.gz); add it")
    return tables


def _from_hub(name: str) -> dict[str, Table]:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f'task {name} without a data folder needs the package datasets; run: pip install "thresher[hub]", '
            f"or give --data DIR, in Python data=DIR, with {name}/train*.jsonl"
        ) from error
    try:
        found = datasets.load_dataset(HUB_NAME, name)
    except Exception as error:  # the hub's libraries raise dozens of kinds for "not reachable"
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(
            f"task {name} cannot be loaded from the hub ({reason}); check the network, or give --data DIR, "
            f"in Python data=DIR, with {name}/train*.jsonl"
        ) from error
    tables = {}
    for split, stem in _file_stems(name).items():
        rows = [dict(row) for row in found[stem]]
        tables[split] = Table(Path(HUB_NAME, name, stem), tuple(rows[0]) if rows else (), rows, None)
    return tables


def _examples(table: Table, spec: TaskSpec) -> list[Example]:
    """Rows as published: unlike a user's, they may hold empty texts, which count in the paper's numbers too."""
    for column in (spec.text_column, spec.pair_column, "label"):
        if column is not None:
            table.require(column)
    return [
        Example(
            text=_text(table, row, spec.text_column),
            pair=None if spec.pair_column is None else _text(table, row, spec.pair_column),
            label=_label(table, row, spec),
        )
        for row in range(len(table.rows))
    ]


def _text(table: Table, row: int, column: str) -> str:
    value = table.value(row, column)
    if not isinstance(value, str):
        raise DataError(f"{table.where(row)}: '{column}' is of type {type(value).__name__}; it must be text")
    return value


def _label(table: Table, row: int, spec: TaskSpec) -> float | int:
    value = table.value(row, "label")
    number = as_number(value) if not isinstance(value, str) else None
    if spec.regression and number is not None and 0 <= number <= 5:
        return number
    if not spec.regression and number is not None and number in range(spec.num_labels):
        return int(number)
    rule = "a number from 0 to 5" if spec.regression else f"0 to {spec.num_labels - 1} ({', '.join(spec.labels)})"
    raise DataError(f"{table.where(row)}: label {value!r} must be {rule}; unlabelled rows cannot be used")
