"""Questions and tags from files: SQuAD's own layout, JSON lines, CoNLL's columns; and what is wrong with them."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from thresher.errors import DataError
from thresher.tasks import load_file_task, load_task, load_test_file
from thresher.tasks.conll import TAG_NAMES
from thresher.tasks.squad import by_article
from thresher.tasks.task import Example
from thresher.tasks.truth import Answers


def article(title: str, questions: int = 3, **more: Any) -> dict[str, Any]:
    context = f"{title} is a river in the north."
    answer = {"text": title, "answer_start": 0}
    asked = [{"question": f"what is {title} {n}?", "id": f"{title}{n}", "answers": [answer]} for n in range(questions)]
    asked[-1] |= {"answers": [], "is_impossible": True, "plausible_answers": [answer]}
    return {"title": title, "paragraphs": [{"context": context, "qas": asked}], **more}


def squad_file(path: Path, articles: list[dict[str, Any]]) -> Path:
    text = json.dumps({"version": "v2.0", "data": articles}).encode()
    packed = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return path


def lines_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", [".json", ".json.xz", ".json.gz"])
def test_the_official_files(tmp_path: Path, ending: str) -> None:
    squad_file(tmp_path / "squad_v2" / f"train-v2.0{ending}", [article(f"t{n}") for n in range(12)])
    squad_file(tmp_path / "squad_v2" / f"dev-v2.0{ending}", [article("d0")])
    task = load_task("squad_v2", data=tmp_path)
    assert len(task.train) + len(task.selection) == 36 and len(task.test["validation"]) == 3
    first, last = task.test["validation"][0], task.test["validation"][-1]
    assert first == Example("what is d0 0?", "d0 is a river in the north.", Answers(("d0",), (0,)), "d0")
    assert last.label == Answers()
    assert not {row.group for row in task.train} & {row.group for row in task.selection}


def test_a_development_set_alone_is_split_by_article(tmp_path: Path) -> None:
    squad_file(tmp_path / "squad" / "dev-v1.1.json", [article(f"d{n}") for n in range(30)])
    task = load_task("squad", data=tmp_path)
    parts = [task.train, task.selection, task.test["validation"]]
    groups = [{row.group for row in part} for part in parts]
    assert sum(map(len, groups)) == 30 == len(set().union(*groups)) and all(groups)
    assert "split by the hash of their titles" in task.source
    again = by_article([*task.test["validation"], *task.train])
    assert again["validation"] == task.test["validation"] and not again["selection"]


def test_selection_rows_of_their_own_and_misplaced_answers(tmp_path: Path) -> None:
    folder = tmp_path / "squad_v2"
    wrong = article("w", 2)
    wrong["paragraphs"][0]["qas"][0]["answers"] = [{"text": "w", "answer_start": 3}]
    partly = article("p", 2)
    partly["paragraphs"][0]["qas"][0]["answers"] += [{"text": "river", "answer_start": 4}]
    squad_file(folder / "train.json", [wrong, partly])
    squad_file(folder / "selection.json", [article("s")])
    squad_file(folder / "dev.json", [article("d")])
    task = load_task("squad_v2", data=tmp_path)
    assert [row.group for row in task.train] == ["w", "p", "p"] and len(task.selection) == 3
    assert task.train[1].label == Answers(("p",), (0,))
    assert "train 3 questions, 2 answers not where the file says and 1 questions left out" in task.source


def test_own_questions(tmp_path: Path) -> None:
    context = "naïve 😀 plot. The plot"
    rows = [
        {"question": f"q{n}?", "context": f"{n} {context}", "answers": answers}
        for n, answers in enumerate(
            [
                ["plot"],
                "😀",
                [],
                None,
                {"text": ["naïve"], "answer_start": [2]},
                [{"text": "plot", "answer_start": 10}, {"text": "The plot", "answer_start": 16}],
            ]
        )
    ]
    file = lines_file(tmp_path / "own.jsonl", rows)
    other = lines_file(tmp_path / "train.jsonl", [{**rows[2], "context": f"{n}"} for n in range(9)])
    task = load_file_task(other, test=file, means="span")
    labels = {row.text: row.label for row in task.test["test"]}
    assert labels["q0?"] == Answers(("plot",), (10,)) and labels["q1?"] == Answers(("😀",), (8,))
    assert labels["q2?"] == labels["q3?"] == Answers()
    assert labels["q5?"] == Answers(("plot", "The plot"), (10, 16))
    assert (task.spec.means, task.spec.text_column, task.spec.pair_column) == ("span", "question", "context")
    listed = tmp_path / "own.json"
    listed.write_text(json.dumps(rows), encoding="utf-8")
    assert load_file_task(other, test=listed, means="span").test == task.test
    again = load_test_file(
        file, text_column="question", pair_column="context", label_column="answers", labels=(), means="span"
    )
    assert again.test["test"] == task.test["test"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"answers": ["nowhere"]},
            r"row 1 \(line 1\): 'answers': 'nowhere' is not in the context; an answer is a piece",
        ),
        ({"answers": [{"text": "film", "answer_start": 1}]}, "'film' is not in the context at character 1"),
        ({"answers": [{"text": "film", "answer_start": -4}]}, "'film' is not in the context at character -4"),
        ({"answers": [7]}, "'answers' is .7.; it must be a text, a list of texts, or SQuAD's objects"),
        ({"answers": [{"text": "film", "answer_start": "2"}]}, "it must be a text, a list of texts"),
        ({"answers": {"text": ["film"], "answer_start": []}}, None),
        ({"answers": {"text": ["a", "film"], "answer_start": [0]}}, "it must be a text, a list of texts"),
        ({"answers": [""]}, "has an empty answer; give an empty list"),
        ({"question": " "}, "'question' is empty; give it text or remove the row"),
        ({"context": 7}, "'context' is of type int"),
        ({"context": "cut \ud83d"}, "half a character"),
    ],
)
def test_what_is_wrong_with_a_question(tmp_path: Path, row: dict[str, Any], message: str | None) -> None:
    good = {"question": "who?", "context": "a film", "answers": []}
    file = lines_file(tmp_path / "own.jsonl", [{**good, **row}, *({**good, "context": f"{n}"} for n in range(9))])
    if message is None:
        assert load_file_task(file, means="span").train
        return
    with pytest.raises(DataError, match=message):
        load_file_task(file, means="span")


def test_own_tags(tmp_path: Path) -> None:
    rows = [{"tokens": ["don't", "stop", str(n)], "tags": ["B-PER", "I-PER", "O"]} for n in range(12)]
    file = lines_file(tmp_path / "own.jsonl", rows)
    task = load_file_task(file, means="tags")
    assert task.spec.labels == ("O", "B-PER", "I-PER") and task.spec.metrics == ("f1",)
    assert task.train[0].label == (1, 2, 0) and task.train[0].text == " ".join(task.train[0].words)
    columns = tmp_path / "own.conll"
    lines = [f"don't NN B-PER\nstop NN I-PER\n{n} NN O\n\n" for n in range(12)]
    columns.write_text("-DOCSTART- -X- O\n\n" + "".join(lines), encoding="utf-8")
    assert load_file_task(columns, means="tags").train == task.train
    other = lines_file(tmp_path / "other.jsonl", [{"tokens": r["tokens"], "ner_tags": r["tags"]} for r in rows])
    assert load_file_task(other, means="tags").train == task.train
    named = load_file_task(file, means="tags", class_names=["I-PER", "O", "B-PER", "B-LOC"])
    assert named.train[0].label == (2, 0, 1) and named.spec.class_order == "user"
    tested = load_test_file(
        file, text_column="tokens", pair_column=None, label_column="tags", labels=("O", "B-PER", "I-PER"), means="tags"
    )
    assert len(tested.test["test"]) == 12


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tags": ["O"]}, "has 2 words and 1 tags; every word needs one"),
        ({"tags": [0, 1]}, "it must be a list of texts.*numbers of tags need their names"),
        ({"tokens": ["a b", "c"]}, "has 'a b'; a word is neither empty nor has it spaces inside"),
        ({"tokens": ["", "c"]}, "has ''; a word is neither empty"),
        ({"tokens": []}, "it must be a list of texts"),
        ({"tokens": ["cut \ud83d".split()[1], "c"]}, "half a character"),
    ],
)
def test_what_is_wrong_with_tags(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = [{"tokens": ["film", str(n)], "tags": ["B-X", "O"]} for n in range(9)]
    with pytest.raises(DataError, match=message):
        load_file_task(lines_file(tmp_path / "own.jsonl", [*good, {**good[0], **row}]), means="tags")


def test_what_is_wrong_with_files(tmp_path: Path) -> None:
    broken = tmp_path / "a.json"
    for text, message in (
        ("{", "is not valid JSON"),
        ('{"a": 1}', "must hold a list of JSON objects, or SQuAD's layout"),
        ('{"data": [{"title": "t"}]}', "article 1 is not in SQuAD's layout"),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{}]}]}]}', "needs paragraphs with a context and qas"),
        ('{"data": []}', "has no rows"),
    ):
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            load_file_task(broken, means="span")
    columns = tmp_path / "a.conll"
    columns.write_text("word\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1 has one column, 'word'; it needs a word and its tag"):
        load_file_task(columns, means="tags")
    with pytest.raises(DataError, match="has no folder 'squad_v2'"):
        load_task("squad_v2", data=tmp_path)
    (tmp_path / "squad_v2").mkdir()
    with pytest.raises(DataError, match=r"has no file dev\*.json"):
        load_task("squad_v2", data=tmp_path)
    with pytest.raises(DataError, match="no hub has it; give --data DIR"):
        load_task("conll2003")
    (tmp_path / "conll2003").mkdir()
    with pytest.raises(DataError, match=r"has 0 files train\*"):
        load_task("conll2003", data=tmp_path)
    rows = [{"tokens": ["a"], "tags": ["B-X"]}, {"tokens": ["b"], "tags": ["O"]}]
    file = lines_file(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match="tags are of the words of one text"):
        load_file_task(file, means="tags", pair_column="b")
    with pytest.raises(DataError, match="answers have no classes"):
        load_file_task(file, means="span", class_names=["a", "b"])


def test_the_real_ones(real_data: Path) -> None:
    for name in ("squad_v2", "conll2003"):
        if not (real_data / name).is_dir():
            pytest.skip(f"{real_data} has no {name}")
    task = load_task("squad_v2", data=real_data)
    sizes = (len(task.train), len(task.selection), len(task.test["validation"]))
    assert sizes == (6459, 1817, 3597)
    names = load_task("conll2003", data=real_data)
    assert (len(names.train), len(names.selection), len(names.test["test"])) == (14041, 3250, 3453)
    assert names.spec.labels == TAG_NAMES
