"""Queries and documents that a reranker is pruned on, without labels, and those that it is tested on, with them.

    python -m thresher.experiments.reranker_rows --data DIR --more DIR --out DIR

`--data` has qnli, mnli, qqp, squad_v2 and squad_shifts, `--more` hotpotqa, scifact and imdb. Training never sees a test
query; of the domain `reddit` it sees nothing at all. Queries are questions, claims, titles, sentences and bare words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.experiments.bm25 import BM25, words_of
from thresher.experiments.rows import Row, chained, chosen, cut, prepared_by_command, read_rows, share_of, write_rows
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
SHARES = {
    "hotpotqa": (3500, 6),
    "scifact": (809, 10),
    "scifact titles": (1500, 4),
    "squad_shifts": (2500, 4),
    "squad_v2": (2500, 4),
    "qnli": (4000, 1),
    "mnli": (3000, 1),
    "qqp": (3000, 1),
    "imdb": (1500, 4),
    "words": (2500, 4),
}
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
    made[HELD_OUT] = list(_squad(sources, HELD_OUT, TEST_QUERIES, IN_DOMAIN, labelled=True))
    tested = {row["query"].lower() for name in TESTS for row in made[name]}
    for row in training_pairs(sources):
        if row["query"].lower() not in tested:  # the same claim or question may come twice
            held = share_of(row["group"], salt="selection") < SELECTION
            made["selection" if held else "train"].append(row)
    counts = {name: write_rows(out / f"{name}.jsonl.xz", rows) for name, rows in made.items()}
    write_json(out / "about.json", {"rows": counts, "queries": {n: _queries(rows) for n, rows in made.items()}})
    return counts


def judging(folder: Path, test: str) -> "Task":
    """The prepared rows of a test as a task; training rows, which are many, are left to those who train."""
    from dataclasses import replace

    from thresher.tasks import load_file_task

    rows, tested = (folder / f"{name}.jsonl.xz" for name in ("selection", test))
    task = load_file_task(rows, test=tested, means="score", **COLUMNS)
    return replace(task, spec=replace(task.spec, name="reranker"), test={test: task.test["test"]})


def training_pairs(sources: Sources) -> Iterator[Row]:
    yield from _hotpotqa_train(sources)
    yield from _scifact_train(sources)
    for domain in TRAINED:
        yield from _squad(sources, domain, *SHARES["squad_shifts"], labelled=False)
    yield from _squad(sources, "squad_v2", *SHARES["squad_v2"], labelled=False)
    for name, columns in PAIRS.items():
        yield from _pairs(sources, name, *columns)
    yield from _imdb(sources)
    yield from _words(sources)


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
    count, documents = SHARES["scifact titles"]
    for row in chosen(corpus, count, key=lambda row: str(row["id"]), salt="titles"):
        for index in search.top(row["title"], documents):
            yield _pair("scifact titles", f"title {row['id']}", row["title"], corpus[index]["text"])


def _scifact_test(sources: Sources) -> Iterator[Row]:
    corpus, search, queries = _scifact(sources)
    relevance: dict[str, dict[str, int]] = {}
    for row in sources.rows("scifact/qrels_test"):
        relevance.setdefault(row["query"], {})[row["doc"]] = row["relevance"]
    for name, found in relevance.items():
        for index in search.top(queries[name], CANDIDATES):
            one = corpus[index]
            yield _pair("scifact", f"scifact {name}", queries[name], one["whole"], label=found.get(one["id"], 0))


# ---- SQuAD and its other domains: questions and paragraphs, one of them right


def _paragraphs_of(sources: Sources, domain: str) -> list[Row]:
    import json
    import lzma

    files = {"squad_v2": sources.data / "squad_v2" / "dev-v2.0.json.xz"}
    file = files.get(domain, sources.data / "squad_shifts" / f"{domain}_v1.0.json.xz")
    with lzma.open(file, "rt", encoding="utf-8") as opened:
        return [one for article in json.load(opened)["data"] for one in article["paragraphs"]]


def _squad(sources: Sources, domain: str, queries: int, documents: int, *, labelled: bool) -> Iterator[Row]:
    """Every question with its own paragraph and those of the domain that BM25 finds first."""
    paragraphs = _paragraphs_of(sources, domain)
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


# ---- rows that are pairs already; IMDB: a review's first sentence and reviews; bare words of a text and texts

PAIRS = {"qnli": ("question", "sentence"), "mnli": ("hypothesis", "premise"), "qqp": ("question1", "question2")}


def _pairs(sources: Sources, name: str, first: str, second: str) -> Iterator[Row]:
    count, _ = SHARES[name]
    rows = [row for row in sources.rows(f"{name}/train_partial") if row[first].strip() and row[second].strip()]
    for row in chosen(rows, count, key=lambda row: row[first] + row[second], salt=name):
        yield _pair(name, f"{name} {row['idx']}", row[first], row[second])


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


def _words(sources: Sources) -> Iterator[Row]:
    """Two to five words of a paragraph, as people type them into a search box."""
    count, documents = SHARES["words"]
    texts = [text for row in _hotpotqa(sources)[TEST_QUERIES:] for text in _paragraphs(row)]
    texts += [one["context"].strip() for domain in TRAINED for one in _paragraphs_of(sources, domain)]
    some = chosen(list(dict.fromkeys(texts)), 4 * count, key=str, salt="words")
    search = BM25(some)
    for right, text in enumerate(some[:count]):
        known = list(dict.fromkeys(word for word in words_of(text) if len(word) > 3))
        query = " ".join(chosen(known, 2 + int(4 * share_of(text, salt="how many")), key=str, salt=text))
        for index in search.top(query, documents) if query else ():
            yield _pair("words", f"words {right}", query, _perhaps_long(some, index))


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


if __name__ == "__main__":
    prepared_by_command(lambda data, more, out: prepare(Sources(data, more), out), __doc__, folders=("data", "more"))
