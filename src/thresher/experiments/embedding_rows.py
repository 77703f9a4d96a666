"""Texts that an embedding model is pruned on, short and long ones without labels; the test is STS-B.

    python -m thresher.experiments.embedding_rows --data DIR --more DIR --out DIR [--part 0.25]

`--data` has sst2, qnli, mnli, qqp and stsb, `--more` hotpotqa, scifact and imdb. No text of the test is trained on, nor
any of its training rows. `--part`: of the texts to train on, only this share.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.experiments.reranker_rows import Sources
from thresher.experiments.rows import Row, chosen, cut, prepared_by_command, share_of, write_rows
from thresher.records import write_json

if TYPE_CHECKING:
    from thresher.tasks import Task

# Texts of each source and kind.
SHARES = {
    "sst2": 15000,
    "qnli questions": 5000,
    "qnli sentences": 9000,
    "mnli premises": 20000,
    "mnli hypotheses": 20000,
    "qqp questions": 20000,
    "imdb": 7000,
    "scifact abstracts": 4000,
    "scifact claims": 809,
    "hotpotqa questions": 6000,
    "hotpotqa sentences": 30000,
    "hotpotqa paragraphs": 10000,
}
LONGEST = 400  # words
SELECTION = 0.05


def prepare(sources: Sources, out: Path, *, part: float = 1.0) -> dict[str, int]:
    """Write train, a `part` of it, selection and test; returns the number of rows of each."""
    test = [
        {"text": row["sentence1"], "pair": row["sentence2"], "label": row["label"]}
        for row in sources.rows("stsb/validation")
    ]
    tested = {text.strip().lower() for row in test for text in (row["text"], row["pair"])}
    made: dict[str, list[Row]] = {"train": [], "selection": [], "stsb": test}
    seen = set(tested)
    for source, text in texts_of(sources):
        known = text.lower()
        if known not in seen:
            seen.add(known)
            held = share_of(text, salt="selection") < SELECTION * part
            if held or share_of(text, salt="part") < part:
                made["selection" if held else "train"].append({"source": source, "text": text})
    counts = {name: write_rows(out / f"{name}.jsonl.xz", rows) for name, rows in made.items()}
    write_json(out / "about.json", {"rows": counts})
    return counts


def texts_of(sources: Sources) -> Iterator[tuple[str, str]]:
    """Source and text, so many of each as SHARES has."""
    qnli = sources.rows("qnli/train_partial")
    mnli, qqp = sources.rows("mnli/train_partial"), sources.rows("qqp/train_partial")
    questions = sources.rows("hotpotqa/dev_distractor")
    paragraphs = [one["sentences"] for row in questions for one in row["paragraphs"]]
    judged = {row["query"] for row in sources.rows("scifact/qrels_train")}
    found = {
        "sst2": [row["sentence"] for row in sources.rows("sst2/train")],
        "qnli questions": [row["question"] for row in qnli],
        "qnli sentences": [row["sentence"] for row in qnli],
        "mnli premises": [row["premise"] for row in mnli],
        "mnli hypotheses": [row["hypothesis"] for row in mnli],
        "qqp questions": [row[name] for row in qqp for name in ("question1", "question2")],
        "imdb": [row["text"] for row in sources.rows("imdb/train")],
        "scifact abstracts": [f"{row['title']}. {row['text']}" for row in sources.rows("scifact/corpus")],
        "scifact claims": [row["text"] for row in sources.rows("scifact/queries") if row["id"] in judged],
        "hotpotqa questions": [row["question"] for row in questions],
        "hotpotqa sentences": [sentence for one in paragraphs for sentence in one[:1]],
        "hotpotqa paragraphs": ["".join(one) for one in paragraphs],
    }
    for name, texts in found.items():
        different = list(dict.fromkeys(cut(text, LONGEST) for text in texts if text.strip()))
        for text in chosen(different, SHARES[name], key=str, salt=name):
            yield name, text


def judging(folder: Path, test: str) -> "Task":
    """The prepared rows of the test as a task; training rows, which are many, are left to those who train."""
    from dataclasses import replace

    from thresher.tasks import load_file_task

    rows, tested = (folder / f"{name}.jsonl.xz" for name in ("selection", test))
    task = load_file_task(rows, test=tested, pair_column="pair", means="embedding")
    return replace(task, spec=replace(task.spec, name="embeddings"), test={test: task.test["test"]})


if __name__ == "__main__":
    prepared_by_command(
        lambda data, more, out, part: prepare(Sources(data, more), out, part=part),
        __doc__,
        folders=("data", "more"),
        numbers={"part": 1.0},
    )
