"""Queries and documents that a reranker is pruned on, without labels, and those that it is tested on, with them.

    python -m thresher.experiments.reranker_rows --data DIR --more DIR --out DIR

`--data` has qnli and squad_shifts, `--more` hotpotqa, scifact and imdb. Training never sees a test query; of the domain
`reddit` it sees nothing at all.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.experiments.bm25 import BM25
from thresher.experiments.rows import Row, chained, chosen, cut, read_rows, share_of, write_rows
from thresher.records import write_json

if TYPE_CHECKING:
    from thresher.tasks import Task

COLUMNS: dict[str, Any] = {
    "text_column": "query",
    "pair_column": "document",
    "label_column": "label",
    "group_column": "group",
}
TRAINED, HELD_OUT = ("amazon_reviews", "nyt", "new_wiki"), "reddit"  # domains of squad_shifts
TESTS = ("scifact", "hotpotqa", HELD_OUT)
# Queries to train with, and documents of each.
SHARES = {"hotpotqa": (1750, 8), "scifact": (809, 10), "squad_shifts": (1000, 4), "qnli": (3000, 1), "imdb": (600, 4)}
TEST_QUERIES, CANDIDATES, IN_DOMAIN = 1000, 50, 10
LONG, LONG_WORDS = 0.25, 360  # the share of documents with neighbours behind them, up to some 500 tokens
SELECTION = 0.05  # of the training queries


@dataclass(frozen=True)
class Sources:
    """Folders with the data sets."""

    data: Path
    more: Path

    def rows(self, name: str) -> list[Row]:
        return read_rows(self.data / f"{name}.jsonl.xz", self.more / f"{name}.jsonl.xz")


def prepare(sources: Sources, out: Path) -> dict[str, int]:
    """Write train, selection and one file per test; returns the number of rows of each."""
    made: dict[str, list[Row]] = {"train": [], "selection": [], "scifact": list(_scifact_test(sources))}
    made["hotpotqa"] = list(_hotpotqa_test(sources))
    made[HELD_OUT] = list(_squad(sources, HELD_OUT, queries=TEST_QUERIES, documents=IN_DOMAIN, labelled=True))
    tested = {row["query"].lower() for name in TESTS for row in made[name]}
    for row in training_pairs(sources):
        if row["query"].lower() not in tested:  # the same claim or question may come twice
            held = share_of(row["group"], salt="selection") < SELECTION
            made["selection" if held else "train"].append(row)
    counts = {name: write_rows(out / f"{name}.jsonl.xz", rows) for name, rows in made.items()}
    write_json(out / "about.json", {"rows": counts, "queries": {n: _queries(rows) for n, rows in made.items()}})
    return counts


def load(folder: Path, *, tests: tuple[str, ...] = TESTS) -> "Task":
    """The prepared rows as a task: training and selection rows without labels, and the tests by name."""
    from dataclasses import replace

    from thresher.tasks import load_file_task

    def split(name: str) -> "Task":
        files = {part: folder / f"{part}.jsonl.xz" for part in ("train", "selection", name)}
        return load_file_task(files["train"], selection=files["selection"], test=files[name], means="score", **COLUMNS)

    loaded = {name: split(name) for name in tests}
    first = loaded[tests[0]]
    spec = replace(first.spec, name="reranker")
    return replace(first, spec=spec, test={name: one.test["test"] for name, one in loaded.items()})


def training_pairs(sources: Sources) -> Iterator[Row]:
    yield from _hotpotqa_train(sources)
    yield from _scifact_train(sources)
    for domain in TRAINED:
        queries, documents = SHARES["squad_shifts"]
        yield from _squad(sources, domain, queries=queries, documents=documents, labelled=False)
    yield from _qnli(sources)
    yield from _imdb(sources)


# ---- HotpotQA: questions with ten paragraphs, two of them relevant


def _hotpotqa(sources: Sources) -> list[Row]:
    """All questions, those of the test first."""
    rows = sources.rows("hotpotqa/dev_distractor")
    return chosen(rows, len(rows), key=lambda row: row["question"], salt="hotpotqa")


def _paragraphs(row: Row) -> list[str]:
    return [f"{one['title']}. {''.join(one['sentences']).strip()}" for one in row["paragraphs"]]


def _hotpotqa_train(sources: Sources) -> Iterator[Row]:
    queries, documents = SHARES["hotpotqa"]
    for row in _hotpotqa(sources)[TEST_QUERIES:][:queries]:
        texts = _paragraphs(row)
        relevant = [i for i, one in enumerate(row["paragraphs"]) if one["relevant"]]
        others = [i for i in range(len(texts)) if i not in relevant]
        own = chosen(others, documents - len(relevant), key=lambda i: texts[i], salt=row["id"])
        for i in sorted(relevant + own):
            yield _pair("hotpotqa", row["id"], row["question"], _perhaps_long(texts, i))


def _hotpotqa_test(sources: Sources) -> Iterator[Row]:
    for row in _hotpotqa(sources)[:TEST_QUERIES]:
        for text, one in zip(_paragraphs(row), row["paragraphs"], strict=True):
            yield _pair("hotpotqa", row["id"], row["question"], text, label=one["relevant"])


# ---- SciFact: claims and abstracts


def _scifact(sources: Sources) -> tuple[list[Row], BM25, dict[str, str]]:
    corpus = sources.rows("scifact/corpus")
    for row in corpus:
        row["whole"] = f"{row['title']}. {row['text']}".strip(". ") + "."
    queries = {row["id"]: row["text"] for row in sources.rows("scifact/queries")}
    return corpus, BM25([row["whole"] for row in corpus]), queries


def _scifact_train(sources: Sources) -> Iterator[Row]:
    """What BM25 finds, every third of the best thirty: easy and hard documents."""
    corpus, search, queries = _scifact(sources)
    judged = dict.fromkeys(row["query"] for row in sources.rows("scifact/qrels_train"))
    count, documents = SHARES["scifact"]
    for name in chosen(list(judged), count, key=str, salt="scifact"):
        for index in search.top(queries[name], 3 * documents)[::3]:
            yield _pair("scifact", f"scifact {name}", queries[name], corpus[index]["whole"])


def _scifact_test(sources: Sources) -> Iterator[Row]:
    corpus, search, queries = _scifact(sources)
    relevance: dict[str, dict[str, int]] = {}
    for row in sources.rows("scifact/qrels_test"):
        relevance.setdefault(row["query"], {})[row["doc"]] = row["relevance"]
    for name, found in relevance.items():
        for index in search.top(queries[name], CANDIDATES):
            one = corpus[index]
            yield _pair("scifact", f"scifact {name}", queries[name], one["whole"], label=found.get(one["id"], 0))


# ---- SQuAD's other domains: questions and paragraphs, one of them right


def _squad(sources: Sources, domain: str, *, queries: int, documents: int, labelled: bool) -> Iterator[Row]:
    """Every question with its own paragraph and those of the domain that BM25 finds first."""
    import json
    import lzma

    with lzma.open(sources.data / "squad_shifts" / f"{domain}_v1.0.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    paragraphs = [one for article in articles for one in article["paragraphs"]]
    texts = [one["context"].strip() for one in paragraphs]
    search = BM25(texts)
    asked = [(index, question) for index, one in enumerate(paragraphs) for question in one["qas"]]
    for right, question in chosen(asked, queries, key=lambda pair: str(pair[1]["id"]), salt=domain):
        query = question["question"].strip()
        others = [i for i in search.top(query, documents + 1) if texts[i] != texts[right]]
        for index in sorted([right, *others[: documents - 1]]):
            text = texts[index] if labelled else _perhaps_long(texts, index)
            label = int(index == right) if labelled else None
            yield _pair(domain, f"{domain} {question['id']}", query, text, label=label)


# ---- QNLI: a question and a sentence; IMDB: a review's first sentence and reviews


def _qnli(sources: Sources) -> Iterator[Row]:
    count, _ = SHARES["qnli"]
    rows = sources.rows("qnli/train_partial")
    for row in chosen(rows, count, key=lambda row: row["question"] + row["sentence"], salt="qnli"):
        yield _pair("qnli", f"qnli {row['idx']}", row["question"], row["sentence"])


def _imdb(sources: Sources) -> Iterator[Row]:
    count, documents = SHARES["imdb"]
    reviews = []
    for row in sources.rows("imdb/train"):
        first, _, rest = " ".join(row["text"].split()).partition(". ")
        if 5 <= len(first.split()) <= 25 and len(rest.split()) >= 30:
            reviews.append((first, cut(rest, LONG_WORDS)))
    some = chosen(reviews, 4 * count, key=lambda pair: pair[1], salt="imdb")
    search = BM25([rest for _, rest in some])
    for right, (query, _) in enumerate(some[:count]):
        others = [i for i in search.top(query, documents) if i != right]
        for index in sorted([right, *others[: documents - 1]]):
            yield _pair("imdb", f"imdb {right}", query, some[index][1])


def _perhaps_long(texts: list[str], index: int) -> str:
    """A text, or for a share of them the text in the midst of its neighbours."""
    if share_of(texts[index], salt="long") >= LONG:
        return cut(texts[index], LONG_WORDS)
    start = max(0, index - int(3 * share_of(texts[index], salt="before")))
    return chained(texts[start:], words=LONG_WORDS)


def _pair(source: str, group: str, query: str, document: str, *, label: float | None = None) -> Row:
    row = {"source": source, "group": group, "query": query.strip(), "document": document}
    return row if label is None else {**row, "label": label}


def _queries(rows: list[Row]) -> int:
    return len({row["group"] for row in rows})


def prepared_by_command(prepare: Callable[[Sources, Path], dict[str, int]], about: str | None) -> None:
    """Prepare rows, and say how many; where the data are and where rows go is on the command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "more", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    for name, count in prepare(Sources(given.data, given.more), given.out).items():
        print(f"{name}: {count:,} rows")


if __name__ == "__main__":
    prepared_by_command(prepare, __doc__)
