"""Question answering and tags on the command line, from the user's own files to answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from thresher.engine.arithmetic import int8_works

STEPS = "--max-steps 3 --batch-size 8 --precision fp32 --device cpu --target-flops 0.9"


def question_rows(count: int) -> list[dict[str, Any]]:
    """Which noun? A fourth has no answer."""
    found = []
    for index, (text, _) in enumerate(tiny.sentences(count)):
        noun = next((word for word in tiny.NOUNS if word in text), None)
        answers = [] if index % 4 == 0 or noun is None else [{"text": noun, "answer_start": text.index(noun)}]
        found.append({"question": f"the {tiny.NOUNS[index % 7]}", "context": f"{text} and {index}", "answers": answers})
    return found


def tag_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for text, _ in tiny.sentences(count):
        words = text.split()
        rows.append({"tokens": words, "tags": ["B-NOUN" if word in tiny.NOUNS else "O" for word in words]})
    return rows


@pytest.mark.parametrize("kind", ["answers", "tags"])
def test_from_own_rows_to_answers(tmp_path: Path, kind: str) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(), head=False)
    rows = question_rows(80) if kind == "answers" else tag_rows(80)
    train, run = tiny.write_rows(tmp_path / "train.jsonl", rows), tmp_path / "run"
    done = tiny.succeeds(
        f"prune {{model}} --train {{train}} --{kind} --out {{out}} {STEPS} --json", model=model, train=train, out=run
    )
    quality = done.json()["quality"]["held_out"]
    assert "f1" in quality["pruned"]["metrics"] and quality["pruned"]["relative_flops"] < 1
    again = tiny.succeeds("eval {run} --device cpu --json", run=run).json()["splits"]["held_out"]
    assert again["pruned"]["metrics"] == pytest.approx(quality["pruned"]["metrics"])
    assert again["dense"]["metrics"] == pytest.approx(quality["dense"]["metrics"])
    table = tiny.succeeds("eval {run} --test {test} --device cpu", run=run, test=train)
    whole = table.out + table.err  # in 80 columns
    wanted = ("hasans_f1", "noans_f1", "null_threshold") if kind == "answers" else ("precision", "recall")
    assert all(name in whole for name in ("f1", "score", *wanted))
    texts = '"the film" "a good film"' if kind == "answers" else '"a good film"'
    shown = tiny.succeeds(f"explain {{run}} {texts} --json", run=run).json()
    assert ("answer" in shown) == (kind == "answers") and ("entities" in shown) == (kind == "tags")
    assert set(shown["dense"]) == ({"answer", "start", "end", "margin"} if kind == "answers" else {"entities"})
    said = tiny.succeeds(f"explain {{run}} {texts}", run=run)
    assert "relative FLOPs" in said.out + said.err


@pytest.mark.parametrize("kind", ["answers", "tags"])
def test_search_then_quantize_and_calibrate(tmp_path: Path, kind: str) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(), head=False)
    rows = question_rows(160) if kind == "answers" else tag_rows(160)
    train, run = tiny.write_rows(tmp_path / "train.jsonl", rows), tmp_path / "run"
    steps = STEPS.replace(" --target-flops 0.9", "")
    call = f"search {{model}} --train {{train}} --{kind} --out {{run}} --max-drop 50% --max-trials 1 {steps} --json"
    found = tiny.succeeds(call, model=model, train=train, run=run).json()
    assert found["within"] and found["selection"]["drop"] <= found["selection"]["bound"] <= 0.5
    if int8_works():
        call = "quantize {run} --train {train} --out {out} --rows 16 --json"
        done = tiny.succeeds(call, run=run, train=train, out=tmp_path / "int8")
        assert "passes on" in done.err and "the last left out" not in done.err, "every state is read"
        int8 = done.json()["quality"]
        assert int8["fp32"]["metrics"]["f1"] == pytest.approx(found["quality"]["held_out"]["pruned"]["metrics"]["f1"])
    texts = tmp_path / "texts.txt"
    lines = [f"{row['question']}\t{row['context']}" if kind == "answers" else " ".join(row["tokens"]) for row in rows]
    texts.write_text("\n".join(lines), encoding="utf-8")
    call = "calibrate {run}/dense --texts {texts} --out {out} --agreement 80% --json"
    fitted = tiny.succeeds(call, run=run, texts=texts, out=tmp_path / "free").json()
    assert 0 < fitted["expected"]["relative_flops"] <= 1
    head = tiny.manifest(tmp_path / "free")["head"]
    known = tiny.manifest(run).get("dense_null_threshold")
    assert head.get("null_threshold") == known and (known is None) == (kind == "tags")


def test_score_and_bench(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(), head=False)
    train, run = tiny.write_rows(tmp_path / "train.jsonl", question_rows(60)), tmp_path / "run"
    done = tiny.succeeds(
        f"prune {{model}} --train {{train}} --answers --out {{out}} {STEPS}", model=model, train=train, out=run
    )
    assert '"a question" "its context"' in " ".join(done.out.split())
    out = tmp_path / "answers.jsonl"
    call = "score {run} {rows} --out {out} --text-column question --pair-column context --device cpu"
    tiny.succeeds(call, run=run, rows=train, out=out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 60 and all(line["answer"] in line["context"] for line in lines)
    found = tiny.succeeds("bench {run} --engines thresher --rounds 1 --no-memory --json", run=run).json()
    assert {row["engine"] for row in found["rows"]} >= {"hugging face", "thresher pruned"} and found["means"] == "span"
    refused = tiny.thresher("score {run} {rows} --out {out} --text-column question", run=run, rows=train, out=out)
    assert refused.code == 1 and "is for pairs of texts" in refused.err


def test_methods_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(), head=False)
    train = tiny.write_rows(tmp_path / "train.jsonl", tag_rows(60))
    call = f"prune {{model}} --train {{train}} --tags --method collapse --out {{out}} {STEPS}"
    done = tiny.thresher(call, model=model, train=train, out=tmp_path / "run")
    assert done.code == 2 and "the head reads every token; use another method" in done.err
