"""CoNLL-2003: names of persons, organisations, places and others in news, a tag for each word."""

from pathlib import Path

from thresher.errors import DataError
from thresher.tasks.readers import read_table
from thresher.tasks.splits import counted
from thresher.tasks.tagged import tag_column, tagged_rows
from thresher.tasks.task import Task, TaskSpec

KINDS = ("PER", "ORG", "LOC", "MISC")
TAG_NAMES = ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI"))  # in the order of published models
CONLL = TaskSpec("conll2003", "tokens", None, TAG_NAMES, ("f1",), label_column="tags", means="tags")
ENDINGS = (".jsonl", ".jsonl.xz", ".jsonl.gz", ".conll", ".conll.xz", ".conll.gz")


def load_conll(data_dir: Path | None) -> Task:
    """Load from `data_dir`/conll2003/{train,validation,test}*; validation sentences choose checkpoints."""
    if data_dir is None:
        raise DataError(
            "conll2003's text may not be passed on, and so no hub has it; give --data DIR, in Python data=DIR, with "
            "conll2003/train*.jsonl (tokens and tags) or train*.conll, and the same for validation and test"
        )
    folder = data_dir / CONLL.name
    if not folder.is_dir():
        raise DataError(f"{data_dir} has no folder '{CONLL.name}'; it must hold train, validation and test files")
    rows = {}
    for split in ("train", "validation", "test"):
        files = sorted(file for file in folder.glob(f"{split}*") if file.name.endswith(ENDINGS))
        if len(files) != 1:
            raise DataError(f"{folder} has {len(files)} files {split}*{{{','.join(ENDINGS)}}}; it must have one")
        table = read_table(files[0])
        rows[split] = tagged_rows(table, tags=tag_column(table, CONLL.label_column), names=CONLL.labels)
    counts = ", ".join(f"{split} {counted(len(found), 'sentence')}" for split, found in rows.items())
    source = f"conll2003 from {folder}: {counts}; the validation sentences are for selection"
    return Task(CONLL, rows["train"], rows["validation"], {"test": rows["test"]}, source)
