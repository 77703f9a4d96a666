"""prune on rows for rerankers and for several labels a row, from the flags to the saved run and its evaluation."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny

STEPS = "--max-steps 2 --batch-size 8 --precision fp32 --device cpu --target-flops 0.9"


def pair_rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Queries of one word with four documents each."""
    found = []
    for index, (text, _) in enumerate(tiny.sentences(count)):
        query = f"{tiny.NOUNS[index // 4 % 7]} {tiny.GOOD[index // 28 % 5]}"
        found.append({"query": query, "doc": text, "id": f"q{index // 4}"})
    return [{**row, **more} for row in found]


def test_a_reranker_without_labels(tmp_path: Path) -> None:
    """Its query is protected, it is trained on the dense model alone, and labelled rows can test it."""
    model = tiny.save_model(tmp_path / "model", tiny.config(num_labels=1))
    train = tiny.write_rows(tmp_path / "train.jsonl", pair_rows(60))
    call = "prune {model} --train {train} --rerank --text-column query --pair-column doc --group-column id --out {out}"
    done = tiny.succeeds(f"{call} {STEPS} --json", model=model, train=train, out=tmp_path / "run")
    quality = done.json()["quality"]["held_out"]
    assert '"a query" "a document"' in " ".join(done.err.split())
    assert quality["dense"]["metrics"]["score"] == pytest.approx(1.0)
    assert {"pearson", "spearman", "top1"} <= quality["pruned"]["metrics"].keys()
    about = tiny.manifest(tmp_path / "run")
    assert about["task"]["means"] == "score" and about["task"]["columns"]["group"] == "id"
    assert about["prune"]["protect"] == ["first", "first_segment"] and about["prune"]["separator_id"] == 3
    again = tiny.succeeds("eval {run} --device cpu --json", run=tmp_path / "run").json()["splits"]["held_out"]
    assert again["pruned"]["metrics"]["pearson"] == pytest.approx(quality["pruned"]["metrics"]["pearson"])
    labelled = [{**row, "label": int(i % 4 == 0)} for i, row in enumerate(pair_rows(60)[:24])]
    test = tiny.write_rows(tmp_path / "test.jsonl", labelled)
    found = tiny.succeeds("eval {run} --test {test} --device cpu --json", run=tmp_path / "run", test=test).json()
    assert "ndcg@10" in str(found)
    model.rename(tmp_path / "gone")
    refused = tiny.thresher("eval {run} --device cpu", run=tmp_path / "run")
    assert refused.code == 1 and f"{model} is not here; put it back, or give rows with labels" in refused.err
    tiny.succeeds("eval {run} --test {test} --device cpu", run=tmp_path / "run", test=test)


def test_test_rows_that_judge_nothing_are_refused_before_the_model_is_read(tmp_path: Path) -> None:
    train = tiny.write_rows(tmp_path / "train.jsonl", pair_rows(60))
    test = tiny.write_rows(tmp_path / "test.jsonl", pair_rows(90, label=0)[60:])
    call = "prune nothing --train {train} --test {test} --rerank --text-column query --pair-column doc --out {out}"
    done = tiny.thresher(call, train=train, test=test, out=tmp_path / "run")
    assert done.code == 1 and "task train has 30 rows and no relevant one among them" in done.err


def test_several_labels_get_a_head_of_their_own(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(), head=False)
    marks = ("warm|long", "warm", "cold", "long")
    rows = [{"text": text, "label": marks[i % 4]} for i, (text, _) in enumerate(tiny.sentences(60))]
    train = tiny.write_rows(tmp_path / "train.jsonl", rows)
    call = "prune {model} --train {train} --out {out}"
    asked = tiny.thresher(f"{call} {STEPS}", model=model, train=train, out=tmp_path / "run")
    assert asked.code == 1 and "say --separator '|'" in asked.err
    call = call + " --separator '|'"
    done = tiny.succeeds(f"{call} {STEPS} --json", model=model, train=train, out=tmp_path / "run")
    assert {"micro_f1", "macro_f1"} <= done.json()["quality"]["held_out"]["pruned"]["metrics"].keys()
    about = tiny.manifest(tmp_path / "run")
    assert about["task"]["labels"] == ["cold", "long", "warm"] and about["task"]["separator"] == "|"
    again = tiny.succeeds("eval {run} --device cpu --json", run=tmp_path / "run").json()["splits"]["held_out"]
    assert again["pruned"]["metrics"] == done.json()["quality"]["held_out"]["pruned"]["metrics"]
    said = tiny.succeeds("eval {run} --test {test} --device cpu", run=tmp_path / "run", test=train)
    assert "micro_f1" in said.out + said.err


def test_flags_that_do_not_fit(tmp_path: Path) -> None:
    train = tiny.write_rows(tmp_path / "train.jsonl", pair_rows(40))
    for flags, says in (
        ("--train {train} --rerank --embed", "--rerank is for rerankers and --embed for embedding models"),
        ("--train {train} --answers --tags", "--answers for question answering and --tags for token classification"),
        ("--train {train} --rerank --text-column query", "name the document's column with --pair-column"),
        (
            "--task sst2 --rerank",
            "--rerank, --embed, --answers, --tags, --group-column and --separator go with --train FILE",
        ),
    ):
        done = tiny.thresher(f"prune nothing {flags} --out {{out}}", train=train, out=tmp_path / "run")
        assert done.code in (1, 2) and says in done.err


def test_an_embedder_without_labels(tmp_path: Path) -> None:
    """It learns from texts; pairs with a similarity test it, before and after it is saved."""
    from tests.models.sentences import WORDS, embedder_folder

    model = embedder_folder(tmp_path / "model")
    texts = [" ".join(WORDS[(i * step) % len(WORDS)] for step in range(1, 4 + i % 7)) for i in range(1, 61)]
    train = tiny.write_rows(tmp_path / "train.jsonl", [{"text": text} for text in dict.fromkeys(texts)])
    pairs = [{"text": texts[i], "pair": texts[i + 1], "label": float(i % 5)} for i in range(20)]
    test = tiny.write_rows(tmp_path / "test.jsonl", pairs)
    call = "prune {model} --train {train} --test {test} --embed --pair-column pair --out {out} --max-length 16"
    done = tiny.succeeds(f"{call} {STEPS} --json", model=model, train=train, test=test, out=tmp_path / "run")
    quality = done.json()["quality"]["test"]
    assert " ".join(done.err.split()).endswith('run "some text"'), "explain takes one text, and refuses pairs"
    assert quality["pruned"]["metrics"].keys() == {"spearman", "score"} and quality["pruned"]["rows"] == 20
    about = tiny.manifest(tmp_path / "run")
    assert about["task"]["means"] == "embedding" and about["prune"]["collapse_last"] is False
    again = tiny.succeeds("eval {run} --device cpu --json", run=tmp_path / "run").json()["splits"]["test"]
    assert again["pruned"]["metrics"]["spearman"] == pytest.approx(quality["pruned"]["metrics"]["spearman"])
    alike = tiny.write_rows(tmp_path / "alike.jsonl", [{**row, "label": 0.5} for row in pairs])
    for file, times in ((test, 0), (alike, 1)):
        said = tiny.succeeds("eval {run} --test {test} --device cpu", run=tmp_path / "run", test=file)
        words = " ".join((said.out + said.err).split())
        assert words.count("the test rows all have the label 0.5, in which there is no order to find") == times
    wrong = f"{call} {STEPS} --overwrite --finetune always"
    refused = tiny.thresher(wrong, model=model, train=train, test=test, out=tmp_path / "run")
    assert refused.code == 2 and "embeddings (--embed) have none; leave it out" in refused.err
    (model / "modules.json").unlink()
    bare = tiny.thresher(f"{call} --overwrite", model=model, train=train, test=test, out=tmp_path / "run")
    assert bare.code == 1 and "is an encoder alone. An embedding model is known by its modules.json" in bare.err
