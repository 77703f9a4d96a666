"""Runs meet rows of their own kind: other classes are refused, and so is a pair too many or too few."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock

MEASURES = (
    "eval {run} --task mrpc --data {data}",
    "bench {run} --task mrpc --data {data} --no-memory --rounds 1",
    "quantize {run} --task mrpc --data {data} --out {out}",
)
PAIRS = {"text": "text", "pair": "other", "label": "label"}


@pytest.fixture
def mrpc(tmp_path: Path) -> Path:
    """A folder with pairs whose two classes are not the finished run's."""
    (tmp_path / "glue" / "mrpc").mkdir(parents=True)
    texts = [text for text, _ in tiny.sentences(48)]
    rows = [{"sentence1": text, "sentence2": "a film", "label": i % 2} for i, text in enumerate(texts)]
    tiny.write_rows(tmp_path / "glue" / "mrpc" / "train.jsonl", rows[:32])
    tiny.write_rows(tmp_path / "glue" / "mrpc" / "validation.jsonl", rows[32:])
    return tmp_path / "glue"


def run_with_task(finished: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the finished run whose thresher.json says something else of its task."""
    shutil.copytree(finished, folder)
    manifest = tiny.manifest(finished)
    (folder / "thresher.json").write_text(json.dumps({**manifest, "task": {**manifest["task"], **changes}}))
    return folder


@pytest.mark.parametrize("call", MEASURES)
def test_a_task_with_other_classes_is_refused(
    call: str, finished: Path, mrpc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thresher.jobs.quantize.check_int8", lambda: None)
    done = tiny.thresher(call, run=finished, data=mrpc, out=tmp_path / "out")
    says = "has the classes negative, positive, but task mrpc has not_equivalent, equivalent; give rows of the run's"
    assert done.code == 1 and done.out == "" and says in done.err
    assert len(done.err.splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", MEASURES)
def test_pairs_for_a_run_of_single_texts_are_refused(
    call: str, finished: Path, mrpc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thresher.jobs.quantize.check_int8", lambda: None)
    run = run_with_task(finished, tmp_path / "run", labels=["LABEL_0", "LABEL_1"])
    done = tiny.thresher(call, run=run, data=mrpc, out=tmp_path / "out")
    assert done.code == 1 and len(done.err.splitlines()) == 1
    assert "is for single texts, but task mrpc has pairs of texts; give rows like the run's own" in done.err


def test_a_run_that_remembers_nothing_of_its_task_is_measured_on_any(
    finished: Path, mrpc: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    manifest = {name: value for name, value in tiny.manifest(finished).items() if name != "task"}
    (tmp_path / "run" / "thresher.json").write_text(json.dumps(manifest))
    refused = tiny.thresher(MEASURES[0], run=tmp_path / "run", data=mrpc)
    assert refused.code == 1 and "the model's classes are negative, positive, the task's not_equivalent" in refused.err
    file = tmp_path / "run" / "config.json"
    names = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **names}))
    tiny.succeeds(MEASURES[0], run=tmp_path / "run", data=mrpc)


@pytest.mark.parametrize(
    ("pairs", "words", "says"),
    [
        (False, "film 'a joke'", "is for single texts, but was given pairs of texts"),
        (True, "film", "is for pairs of texts, but was given single texts"),
        (False, "film", None),
        (True, "film 'a joke'", None),
    ],
)
def test_explain_refuses_a_pair_too_many_or_too_few(
    pairs: bool, words: str, says: str | None, finished: Path, tmp_path: Path
) -> None:
    run = run_with_task(finished, tmp_path / "run", columns=PAIRS) if pairs else finished
    for form in ("", "--json"):
        done = tiny.thresher(f"explain {{run}} {words} {form}", run=run)
        assert done.code == (1 if says else 0) and (done.out == "") == bool(says)
        assert says is None or (says in done.err and len(done.err.splitlines()) == 1)


@pytest.mark.parametrize("pairs", [False, True])
def test_bench_refuses_texts_of_the_other_kind(pairs: bool, finished: Path, tmp_path: Path) -> None:
    run = run_with_task(finished, tmp_path / "run", columns=PAIRS) if pairs else finished
    call = "bench {run} --texts {texts} --engines hf --rounds 1 --no-memory --json"
    for rest in ("", "\ta joke"):
        file = tmp_path / "texts.txt"
        file.write_text(f"a good film{rest}\na bad film{rest}\n", encoding="utf-8")
        done = tiny.thresher(call, run=run, texts=file)
        assert done.code == (1 if pairs != bool(rest) else 0)
        own, given = ("pairs of", "single") if pairs else ("single", "pairs of")
        assert (f"is for {own} texts, but was given {given} texts" in done.err) == (done.code == 1)


def test_calibrate_refuses_texts_of_another_kind_than_the_run_around_the_model(stock: Stock, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prune = "prune {model} --train {rows} --out {out} " + tiny.QUICK
    tiny.succeeds(prune, model=stock.bare, rows=stock.rows, out=run)
    file = tmp_path / "pairs.txt"
    file.write_text("".join(f"{text}\ta joke\n" for text, _ in tiny.sentences(64)), encoding="utf-8")
    places = {"model": run / "dense", "texts": file, "out": tmp_path / "calibrated"}
    done = tiny.thresher("calibrate {model} --texts {texts} --out {out}", **places)
    assert done.code == 1 and "dense is for single texts, but was given pairs of texts" in done.err
