"""CoNLL-2003 in texts of several sentences: what a sentence or two cannot show, a page can.

    python -m thresher.experiments.ner_rows --data DIR --out DIR

`--data` has conll2003. Sentences stay in their order, so that neighbours are mostly of one article, and every text has
as many of them as its folder says: DIR/sentences-1, sentences-4, sentences-16. Words, tags and entities are the same in
all, so that F1 can be compared.
"""

import json
import lzma
from pathlib import Path

from thresher.experiments.rows import Row, prepared_by_command, write_rows
from thresher.tasks.conll import CONLL, load_conll
from thresher.tasks.task import Example

SENTENCES = (1, 4, 16)


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write every split in texts of every length; returns the number of texts of each."""
    task = load_conll(data)
    splits = {"train": task.train, "validation": task.selection, "test": task.test["test"]}
    counts = {}
    for sentences in SENTENCES:
        for split, rows in splits.items():
            file = folder_of(out, sentences) / CONLL.name / f"{split}.jsonl.xz"
            counts[f"{sentences} sentences, {split}"] = write_rows(file, joined(rows, sentences))
    return counts


def folder_of(data: Path, sentences: int) -> Path:
    return data / f"sentences-{sentences}"


def joined(rows: list[Example], sentences: int) -> list[Row]:
    """Texts of so many sentences; the last may have fewer."""
    found = []
    for start in range(0, len(rows), sentences):
        some = rows[start : start + sentences]
        words = [word for row in some for word in row.words]
        tags = [CONLL.labels[tag] for row in some if isinstance(row.label, tuple) for tag in row.label]
        found.append({"tokens": words, "tags": tags})
    return found


def mean_words(data: Path, sentences: int) -> float:
    """Words of a test text, on average."""
    with lzma.open(folder_of(data, sentences) / CONLL.name / "test.jsonl.xz", "rt", encoding="utf-8") as file:
        counts = [len(json.loads(line)["tokens"]) for line in file]
    return sum(counts) / len(counts)


if __name__ == "__main__":
    prepared_by_command(prepare, __doc__)
