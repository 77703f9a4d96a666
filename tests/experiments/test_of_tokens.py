"""Rows of question answering and tags from made-up copies of the data, and pages made of records."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from thresher.experiments import ner, ner_rows, ner_strings, squad, squad_rows
from thresher.experiments.of_tokens import method_keys, metric_fields
from thresher.experiments.runner import read_config
from thresher.experiments.trained import fields_of
from thresher.records import append_record
from thresher.tasks import load_task
from thresher.tasks.task import Example
from thresher.tasks.truth import Answers

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def squad_file(path: Path, articles: dict[str, list[tuple[str, str]]]) -> None:
    """Titles, each with paragraphs: a context, and the answer to its only question ('' for none)."""
    data = []
    for title, paragraphs in articles.items():
        found = []
        for number, (context, text) in enumerate(paragraphs):
            answers = [{"text": text, "answer_start": context.find(text)}] if text else []
            asked = {"id": f"{title}{number}", "question": f"where is {context.split()[0]}?", "answers": answers}
            found.append({"context": context, "qas": [{**asked, "is_impossible": not answers}]})
        data.append({"title": title, "paragraphs": found})
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        json.dump({"data": data}, file)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    articles = {f"a{n}": [(f"w{n} lies in the north", "the north"), (f"w{n} is warm", "")] for n in range(30)}
    squad_file(tmp_path / "squad_v2" / "dev-v2.0.json.xz", articles)
    for domain in squad_rows.SHARES:
        own = {f"{domain} {n}": [(f"x{n} lies near y{n}", f"y{n}")] for n in range(20)}
        # One article that is tested, one answer that is not where the file says.
        own |= {"a0": [("w0 lies in the north", "the north")], "misplaced": [("z lies there", "nowhere")]}
        squad_file(tmp_path / "squad_shifts" / f"{domain}_v1.0.json.xz", own)
    return tmp_path


def test_questions_of_tested_articles_are_not_trained_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squad_rows, "SHARES", dict.fromkeys(squad_rows.SHARES, (10, 10)))
    counts = squad_rows.prepare(data, tmp_path / "out")
    task = load_task("squad_v2", data=tmp_path / "out")
    held = {row.group for row in [*task.selection, *task.test["validation"]]}
    assert not held & {row.group for row in task.train}
    assert not {row.pair for row in task.train} & {row.pair for row in task.test["validation"]}
    assert counts["nyt answers not in their place"] == counts["nyt questions left out for it"] == 1
    assert counts["train in all"] == len(task.train) and counts["nyt with an answer"] == 10
    made = [row for row in task.train if str(row.group).startswith("made")]
    assert len(made) == sum(count for what, count in counts.items() if "made unanswerable" in what) > 20
    for row in made:
        assert row.label == Answers() and row.text.split()[-1].strip("?") not in str(row.pair).split()


def test_a_made_question_gets_a_paragraph_without_its_answer() -> None:
    def row(context: str, answer: str) -> Example:
        return Example("where is the red river?", context, Answers((answer,), (context.index(answer),)), "a")

    corpus = [row("the red river is in Peru", "Peru"), row("a red river near PERU", "red"), row("a river", "river")]
    (found,) = squad_rows.unanswerable(corpus[:1], corpus)
    assert found.pair == "a river" and found.label == Answers()  # the nearer paragraph names Peru
    assert list(squad_rows.unanswerable(corpus[:1], corpus[:2])) == []


def test_sentences_are_joined_and_keep_their_tags(tmp_path: Path) -> None:
    folder = tmp_path / "conll2003"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"tokens": ["Ann", str(n)], "ner_tags": ["B-PER", "O"]} for n in range(6)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    counts = ner_rows.prepare(tmp_path, tmp_path / "out")
    assert counts["4 sentences, test"] == 2 and counts["1 sentences, train"] == 6
    joined = load_task("conll2003", data=ner_rows.folder_of(tmp_path / "out", 4)).test["test"]
    assert joined[0].words == ("Ann", "0", "Ann", "1", "Ann", "2", "Ann", "3") and joined[0].label == (1, 0) * 4
    assert ner_rows.mean_words(tmp_path / "out", 4) == 6.0


def test_the_configurations_ask_for_what_the_pages_promise() -> None:
    config = read_config(EXPERIMENTS / "squad")
    found = squad.keys(config)
    assert [key["seed"] for key in found[:3]] == [0, 1, 2] and {key["method"] for key in found[:3]} == {"thresher"}
    assert sum(key["method"] == "dense" for key in found) == 3 and len(found) == 3 * 8 + 3 + len(squad.TRIED)
    rivals = {"ltp", "manual", "spatten", "random", "lat"}
    assert {key["method"] for key in found} == {"thresher", "dense", *rivals, *squad.TRIED}
    assert all(key["target"] == config["targets"][0] for key in found if key["method"] in squad.TRIED)
    own = read_config(EXPERIMENTS / "ner")
    assert {key["sentences"] for key in ner.keys(own)} == {1, 4, 16}
    sizes = {sentences: ner.settings_for(sentences, own)["train"]["batch_size"] for sentences in own["sentences"]}
    assert {sentences * size for sentences, size in sizes.items()} == {64}, "as many steps for every length"
    assert len(method_keys(own)) == 2 * 4 + 3


def test_a_tagger_is_given_words_and_strings() -> None:
    words = ["He", "said", '"', "Go", "(", "now", ")", '"', ",", "Ann", "'s", "U.S.", "aide", "."]
    text, spans = ner_strings.written(words)
    assert text == 'He said "Go (now)", Ann\'s U.S. aide.'
    assert (
        [text[start:end] for start, end in spans]
        == words
        == [ner_strings.spaced(words)[0][a:b] for a, b in ner_strings.spaced(words)[1]]
    )


def record(method: str, seed: int, f1: float, flops: float, **more: Any) -> dict[str, Any]:
    metrics = {"f1": f1, "hasans_f1": f1 - 0.1, "noans_f1": f1 + 0.1}
    dense = metric_fields("dense", {name: value + 0.01 for name, value in metrics.items()})
    return {
        **{"task": "squad_v2", "model": "m", "method": method, "target": flops, "seed": seed, "relative_flops": flops},
        **dense,
        **metric_fields("pruned", metrics),
        **more,
    }


def test_pages(tmp_path: Path) -> None:
    rows = [record("thresher", 0, 0.7, 0.5), record("thresher", 1, 0.72, 0.5), record("dense", 0, 0.73, 1.0)]
    rows.append(record("exits", 0, 0.704, 0.5))
    marks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("summary", "tries", "means", "figure", "table"))
    (tmp_path / "README.md").write_text(marks, encoding="utf-8")
    written = squad.publish(rows, tmp_path, {"models": ["m"]})
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "2.00x fewer FLOPs, mean of 2 seeds: loses 1.00 points of F1 (1.00 with an answer, 1.00" in page
    assert "3.00 against the dense control trained as long" in page.replace("\n", " ")
    assert "| exits | 0 | 2.00x | 2.00x | +0.40 | +0.40 | +0.40 |" in page
    assert "| thresher | 2.00x | 71.00 | 61.00 | 81.00 |" in page
    assert "| thresher | 0.5 | 0 | 2.00x | 71.00 -> 70.00 (-1.00) |" in page and any(
        p.suffix == ".svg" for p in written
    )
    append_record(tmp_path / "records.jsonl", record("thresher", 0, 0.6, 0.52))
    append_record(tmp_path / "records.jsonl", rows[0])
    assert "each run" in (tmp_path / "squad.svg").read_text(encoding="utf-8")
    before = (tmp_path / "squad.svg").read_text(encoding="utf-8")
    squad.publish(rows, tmp_path, {"models": ["m"]})
    assert (tmp_path / "squad.svg").read_text(encoding="utf-8") != before, "the run of another setting is a point"
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| thresher | 0.52 | 0 | 1.92x | 61.00 -> 60.00 (-1.00) |" in page, "no longer asked for, and not hidden"
    assert page.count("| thresher | 0.5 | 0 |") == 1 and "mean of 2 seeds" in page
    tagged = [{**row, "sentences": 4, "words": 54.2} for row in rows]
    assert ner.publish(tagged, tmp_path, {}) == [tmp_path / "README.md"]
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| m | 54 | thresher | 2 | 2.00x | 72.00 | 71.00 | -1.00 | -3.00 |" in page
    assert "| m | 54 | dense | 0 | 1.00x | 74.00 -> 73.00 (-1.00) |  |" in page


def test_a_record_has_the_metrics_of_both_versions() -> None:
    quality = {"validation": {name: {"metrics": {"f1": 0.5, "score": 0.5}} for name in ("dense", "pruned")}}
    assert fields_of({"quality": quality}, metric_fields) == {"dense_f1": 0.5, "pruned_f1": 0.5}
