"""Rows for rerankers and embeddings, from made-up copies of the data sets."""

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thresher.errors import DataError
from thresher.experiments import embedding_rows, reranker_rows
from thresher.experiments.bm25 import BM25
from thresher.experiments.reranker_rows import Sources
from thresher.experiments.rows import chained, chosen, prepared_by_command, read_rows, write_rows


def test_bm25_by_hand() -> None:
    """'cat' is in one of two documents of equal length, twice: idf ln(1 + 1.5 / 1.5), tf 2 * 1.9 / (2 + 0.9)."""
    search = BM25(["the cat CAT", "the dog ran"])
    np.testing.assert_allclose(search.scores("Cat?"), [math.log(2) * 2 * 1.9 / 2.9, 0.0])
    assert search.scores("the").tolist() == [pytest.approx(math.log(1.2))] * 2
    assert search.top("a dog", 2) == [1, 0] and search.top("unknown", 1) == [0]


def test_rows_come_back_and_choices_depend_on_content_alone(tmp_path: Path) -> None:
    rows = [{"text": f"ä {i}"} for i in range(20)]
    assert write_rows(tmp_path / "a" / "rows.jsonl.xz", rows) == 20
    assert read_rows(tmp_path / "missing.xz", tmp_path / "a" / "rows.jsonl.xz") == rows
    with pytest.raises(DataError, match="missing.xz: no such file; see the page"):
        read_rows(tmp_path / "missing.xz")
    texts = [row["text"] for row in rows]
    assert chosen(texts, 5, key=str, salt="s") == chosen(texts[::-1], 5, key=str, salt="s")
    assert chosen(texts, 5, key=str, salt="s") != chosen(texts, 5, key=str, salt="t")
    assert chained(["a b", "c d", "e"], words=4) == "a b c d" and chained(["a b c"], words=2) == "a b"


def words(start: int, count: int = 12) -> str:
    return " ".join(f"w{(start * 7 + i * i) % 97}" for i in range(count))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A few rows of every data set, in their formats."""
    data, more = tmp_path / "data", tmp_path / "more"
    paragraphs = [
        {"title": f"T{i}", "sentences": ["So " + words(i), " " + words(i + 1)], "relevant": int(i < 2)}
        for i in range(9)
    ]
    hotpot = [{"id": f"h{i}", "question": f"question {i} {words(i, 3)}?", "paragraphs": paragraphs} for i in range(30)]
    write_rows(more / "hotpotqa" / "dev_distractor.jsonl.xz", hotpot)
    corpus = [{"id": str(i), "title": f"Study {i}", "text": words(i, 40)} for i in range(60)]
    write_rows(more / "scifact" / "corpus.jsonl.xz", corpus)
    # Claim 1 is a training claim and, word for word, a test claim.
    claims = [{"id": str(i), "text": "twin claim" if i in (1, 15) else f"claim {i} {words(i, 4)}"} for i in range(20)]
    write_rows(more / "scifact" / "queries.jsonl.xz", claims)
    write_rows(
        more / "scifact" / "qrels_train.jsonl.xz", [{"query": str(i), "doc": str(i), "relevance": 1} for i in range(10)]
    )
    write_rows(
        more / "scifact" / "qrels_test.jsonl.xz",
        [{"query": str(i), "doc": str(i), "relevance": 1} for i in range(10, 20)],
    )
    write_rows(
        more / "imdb" / "train.jsonl.xz",
        [{"text": f"A film like number {i} it is. {words(i, 40)}", "label": 1} for i in range(20)],
    )
    write_rows(
        data / "qnli" / "train_partial.jsonl.xz",
        [{"idx": i, "question": f"why {i}?", "sentence": words(i), "label": 0} for i in range(20)],
    )
    for name, columns in (("mnli", ("premise", "hypothesis")), ("qqp", ("question1", "question2"))):
        pairs = [{"idx": i, columns[0]: f"{name} {words(i)}", columns[1]: f"{name} {words(i, 5)}"} for i in range(20)]
        write_rows(data / name / "train_partial.jsonl.xz", [*pairs, {"idx": 20, columns[0]: "x", columns[1]: " "}])
    write_rows(
        data / "sst2" / "train.jsonl.xz",
        [{"sentence": words(i, 6), "label": 1} for i in range(20)] + [{"sentence": "A dog runs.", "label": 0}],
    )
    write_rows(
        data / "stsb" / "validation.jsonl.xz",
        [{"sentence1": "a dog runs.", "sentence2": f"dog {i}", "label": float(i)} for i in range(5)],
    )
    for domain in (*reranker_rows.TRAINED, reranker_rows.HELD_OUT, "squad_v2"):
        asked = [
            {
                "context": f"{domain} {words(i, 30)}",
                "qas": [{"id": f"{domain}{i}", "question": f"{domain} {words(i, 3)}?"}],
            }
            for i in range(20)
        ]
        files = {"squad_v2": data / "squad_v2" / "dev-v2.0.json.xz"}
        place = files.get(domain, data / "squad_shifts" / f"{domain}_v1.0.json.xz")
        place.parent.mkdir(exist_ok=True)
        with lzma.open(place, "wt") as file:
            json.dump({"data": [{"paragraphs": asked}]}, file)
    monkeypatch.setattr(reranker_rows, "TEST_QUERIES", 10)
    monkeypatch.setattr(reranker_rows, "SELECTION", 0.2)
    monkeypatch.setattr(embedding_rows, "SELECTION", 0.2)
    return Sources(data, more)


def by_name(folder: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    return {name: read_rows(folder / f"{name}.jsonl.xz") for name in names}


def test_reranker_rows(sources: Sources, tmp_path: Path) -> None:
    counts = reranker_rows.prepare(sources, tmp_path / "rows")
    found = by_name(tmp_path / "rows", "train", "selection", *reranker_rows.TESTS)
    assert counts == {name: len(rows) for name, rows in found.items()}
    for name in ("train", "selection"):
        assert all("label" not in row and row["source"] != "reddit" for row in found[name])
    tested = {row["query"] for name in reranker_rows.TESTS for row in found[name]}
    assert "twin claim" in tested and not tested & {row["query"] for row in found["train"] + found["selection"]}
    assert not {row["group"] for row in found["train"]} & {row["group"] for row in found["selection"]}
    sources_seen = {row["source"] for row in found["train"]}
    assert sources_seen == {*reranker_rows.SHARES, *reranker_rows.TRAINED} - {"squad_shifts"}
    by_query: dict[str, list[int]] = {}
    for row in found["reddit"] + found["hotpotqa"]:
        by_query.setdefault(row["group"], []).append(row["label"])
    assert {len(labels) for labels in by_query.values()} == {9, 10}
    assert {sum(labels) for labels in by_query.values()} == {1, 2}
    assert len(found["scifact"]) == 10 * 50
    task = reranker_rows.judging(tmp_path / "rows", "reddit")
    assert list(task.test) == ["reddit"] and task.spec.means == "score"
    assert task.test["reddit"][0].label in (0.0, 1.0)


def test_long_documents_are_among_them(sources: Sources, tmp_path: Path) -> None:
    reranker_rows.prepare(sources, tmp_path / "rows")
    lengths = [
        len(row["document"].split())
        for row in read_rows(tmp_path / "rows" / "train.jsonl.xz")
        if row["source"] == "nyt"
    ]
    assert min(lengths) == 31 and 200 < max(lengths) <= reranker_rows.LONG_WORDS


def test_embedding_rows(sources: Sources, tmp_path: Path) -> None:
    embedding_rows.prepare(sources, tmp_path / "rows")
    found = by_name(tmp_path / "rows", "train", "selection", "stsb")
    texts = [row["text"] for row in found["train"] + found["selection"]]
    assert len(texts) == len({text.lower() for text in texts}) and "A dog runs." not in texts
    assert {row["source"] for row in found["train"]} == set(embedding_rows.SHARES)
    counts = embedding_rows.prepare(sources, tmp_path / "some", part=0.5)
    some = {row["text"] for row in by_name(tmp_path / "some", "train")["train"]}
    assert some < {row["text"] for row in found["train"] + found["selection"]} and 0 < counts["train"] < len(texts)
    task = embedding_rows.judging(tmp_path / "rows", "stsb")
    assert task.spec.means == "embedding" and task.train[0].pair is None
    assert task.test["stsb"][2] == type(task.test["stsb"][2])("a dog runs.", "dog 2", 2.0)


def test_a_command_prepares_rows_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    def prepare(data: Path, more: Path, out: Path, part: float) -> dict[str, int]:
        asked.extend((data, more, out))
        assert part == 0.5
        return {"train": 1234}

    monkeypatch.setattr("sys.argv", ["rows", "--more", "b", "--data", "a", "--out", "c", "--part", "0.5"])
    prepared_by_command(prepare, "about", folders=("data", "more"), numbers={"part": 1.0})
    assert asked == [Path("a"), Path("b"), Path("c")] and capsys.readouterr().out == "train: 1,234\n"
