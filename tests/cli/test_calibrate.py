"""thresher calibrate: thresholds without training or labels, as a run like any other."""

import math
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.engine.engine import Engine
from thresher.errors import ConfigError, DataError
from thresher.jobs.calibrate import FEWEST, parse_share, split_texts
from thresher.tasks import Example, load_task
from thresher.tasks.files import read_texts

CALIBRATE = "calibrate {model} --texts {texts} --out {out}"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(text for text, _ in tiny.sentences(90)), encoding="utf-8")
    return file


def test_a_run_like_any_other(stock: Stock, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "free"
    done = tiny.succeeds(CALIBRATE + " --agreement 95% --json", model=stock.head, texts=texts, out=out)
    found, manifest = done.json(), tiny.manifest(out)
    assert manifest["training_free"] == {name: found[name] for name in manifest["training_free"]}
    assert found["goal"] == {"agreement": 0.95, "flops": None}
    assert found["texts"] == {"fit": 45, "judge": 45, "source": "texts in texts.txt", "pairs": False}
    assert found["fit"]["agreement"] >= 0.95
    expected = found["expected"]
    assert expected["agreement"]["low"] <= expected["agreement"]["value"] <= expected["agreement"]["high"]
    assert expected["agreement"]["texts"] == 45 and 0 < expected["relative_flops"] < 1
    assert manifest["recipe"]["recipe"] == "training-free" and manifest["thresholds"][-1] == "inf"
    assert manifest["prune"]["score"] == "value"
    before, after = tiny.weights(stock.head), tiny.weights(out)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    for words in ("agreement", "95% interval", "no weight was changed", "thresher bench"):
        assert words in done.err
    tiny.succeeds("eval {run} --test {test}", run=out, test=stock.test)
    tiny.succeeds("explain {run} 'the film is good'", run=out)
    bench = "bench {run} --texts {texts} --engines thresher --rounds 1 --no-memory --rows 8 --json"
    tiny.succeeds(bench, run=out, texts=texts)
    text, pair = Engine.load(out, device="cpu", dtype="fp32").classify(["the film is good", ("the film", "is good")])
    assert text.label and pair.error is not None and "the model is for single texts" in pair.error


def test_the_command_that_it_ends_with_works(stock: Stock, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a free run"
    done = tiny.succeeds(CALIBRATE, model=stock.head, texts=texts, out=out)
    command = done.out.splitlines()[-1]
    assert shlex.split(command) == ["thresher", "bench", str(out), "--texts", str(texts)]
    tiny.succeeds(command.removeprefix("thresher ") + " --engines hf --rounds 1 --no-memory --rows 4")


def test_a_run_without_a_task_does_not_claim_training(stock: Stock, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny.succeeds(CALIBRATE, model=stock.head, texts=texts, out=out)
    for command in ("eval {run}", "bench {run}"):
        done = tiny.thresher(command, run=out)
        assert done.code == 2 and "was calibrated on your own texts; give rows to measure on with --te" in done.err


def test_a_cost_instead_of_an_agreement(stock: Stock, texts: Path, tmp_path: Path) -> None:
    call = CALIBRATE + " --target-flops 0.8 --json"
    found = tiny.succeeds(call, model=stock.head, texts=texts, out=tmp_path / "out").json()
    assert found["goal"] == {"agreement": None, "flops": 0.8}
    assert found["fit"]["relative_flops"] == pytest.approx(0.8, abs=0.05)


def test_a_task_brings_its_selection_rows_but_not_its_labels(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sst2").mkdir()
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(120)]
    tiny.write_rows(tmp_path / "sst2" / "train.jsonl", rows[:90])
    tiny.write_rows(tmp_path / "sst2" / "validation.jsonl", rows[90:])
    task = load_task("sst2", data=tmp_path)
    few = tiny.thresher(
        "calibrate {model} --task sst2 --data {data} --out {out}", model=stock.head, data=tmp_path, out=tmp_path / "no"
    )
    assert few.code == 1 and f"{len(task.selection)} different texts are too few" in few.err, (
        "training rows would flatter"
    )
    monkeypatch.setattr("thresher.jobs.calibrate.FEWEST", len(task.selection))
    call = "calibrate {model} --task sst2 --data {data} --out {out} --json"
    done = tiny.succeeds(call, model=stock.head, data=tmp_path, out=tmp_path / "out")
    found = done.json()
    assert done.err.splitlines()[-1] == f"thresher bench {tmp_path / 'out'} --task sst2 --data {tmp_path}"
    assert found["texts"]["fit"] + found["texts"]["judge"] == len(task.selection)
    assert found["texts"]["source"] == "rows of sst2, labels unread"
    assert tiny.manifest(tmp_path / "out")["task"]["name"] == "sst2"
    tiny.succeeds("eval {run} --data {data}", run=tmp_path / "out", data=tmp_path)


def test_a_regression(texts: Path, tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "values", tiny.config(num_labels=1, problem_type="regression"))
    done = tiny.succeeds(CALIBRATE + " --agreement 0.9", model=model, texts=texts, out=tmp_path / "out")
    assert "correlation" in " ".join(done.out.split()) and "of their spread" in " ".join(done.out.split())
    assert tiny.manifest(tmp_path / "out")["training_free"]["expected"]["agreement"]["rms"] >= 0


def test_no_text_is_on_both_sides() -> None:
    """Copies stay together, so that nothing is judged on what it was fitted with."""
    rows = [Example(text, None, 0) for text, _ in tiny.sentences(140)]
    fitting, judging = split_texts(rows + rows[:50], 100)
    assert len(fitting) == len(judging) == 50
    assert not {row.text for row in fitting} & {row.text for row in judging}
    with pytest.raises(DataError, match=f"63 different texts are too few; give at least {FEWEST}"):
        split_texts(rows[:63] * 2, 100)


@pytest.mark.parametrize(("text", "share"), [("99%", 0.99), ("0.99", 0.99), ("97.5%", 0.975)])
def test_shares_are_read(text: str, share: float) -> None:
    assert math.isclose(parse_share(text), share)


def test_a_word_is_not_a_share() -> None:
    with pytest.raises(ConfigError, match="'high' is not a share; write 99% or 0.99"):
        parse_share("high")


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ("--texts {texts} --agreement 99", "agreement = 99 must be above 50%", 2),
        ("--texts {texts} --agreement 20%", "agreement = 0.2 must be above 50%", 2),
        ("--texts {texts} --agreement nan", "above 50% and at most 100%", 2),
        ("--texts {texts} --agreement 99% --target-flops 0.8", "give either --agreement 99% or --target-flops 0.8", 2),
        ("--texts {texts} --target-flops 2", "target_flops = 2", 2),
        ("--texts {texts} --target-flops 0.1", "target_flops = 0.1 cannot be reached", 2),
        ("--texts {texts} --rows 10", "rows = 10 is below 64", 2),
        ("--texts {texts} --max-length 2", "max_length = 2 is below 4", 2),
        ("--texts {texts} --task movies", "give either --texts FILE or --task NAME", 2),
        ("--texts {texts} --data {tmp}", "goes with --task NAME", 2),
        ("", "give either --texts FILE or --task NAME", 2),
        ("--texts {tmp}/few.txt", "3 different texts are too few; give at least 64", 1),
        ("--texts {tmp}/empty.txt", "has no texts; give one per line", 1),
        ("--texts {tmp}/none.txt", "none.txt does not exist", 1),
        ("--texts {tmp}/rows.csv", "rows.csv is a table; the file must hold one text per line", 1),
    ],
)
def test_bad_calls(words: str, says: str, code: int, stock: Stock, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("a\nb\nc\nc\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" \n\n", encoding="utf-8")
    (tmp_path / "rows.csv").write_text("text\n" + texts.read_text(encoding="utf-8"), encoding="utf-8")
    call = f"calibrate {{model}} --out {{tmp}}/out {words}"
    done = tiny.thresher(call, model=stock.head, texts=texts, tmp=tmp_path)
    assert done.code == code and says in done.err, done.err
    assert len(done.err.splitlines()) == 1 and not (tmp_path / "out").exists()


def test_models_that_cannot_be_calibrated(stock: Stock, finished: Path, texts: Path, tmp_path: Path) -> None:
    places = {"texts": texts, "out": tmp_path / "out"}
    done = tiny.thresher(CALIBRATE, model=stock.bare, **places)
    assert done.code == 1 and "has no classification head" in done.err
    done = tiny.thresher(CALIBRATE, model=finished, **places)
    assert done.code == 1 and "is a pruned run with thresholds of its own" in done.err
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_replaced(stock: Stock, texts: Path, tmp_path: Path) -> None:
    done = tiny.thresher(CALIBRATE, model=stock.head, texts=texts, out=tmp_path)
    assert done.code == 1 and "exists and is not a thresher run; choose another --out" in done.err
    done = tiny.thresher(CALIBRATE, model=stock.head, texts=texts, out=texts)
    assert done.code == 1 and "is a file" in done.err


def test_a_run_is_replaced_when_asked_for(stock: Stock, finished: Path, texts: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    places = {"model": stock.head, "texts": texts, "out": tmp_path / "run"}
    done = tiny.thresher(CALIBRATE, **places)
    assert done.code == 1 and "already holds a run; choose another --out, or replace it with --overwrite" in done.err
    assert tiny.manifest(tmp_path / "run") == tiny.manifest(finished)
    tiny.succeeds(f"{CALIBRATE} --overwrite", **places)
    assert tiny.manifest(tmp_path / "run") != tiny.manifest(finished)


def test_help_has_an_example_and_the_fewest_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no frame in the middle of a sentence
    said = " ".join(tiny.succeeds("calibrate --help").out.split())
    assert "Example: thresher calibrate" in said and f"at most this many texts, at least {FEWEST};" in said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a film", "", "a film\tgood"], "line 3 has a tab before a second text, the first text has none"),
        (["a film\tgood", "a film"], "line 2 has no tab before a second text, the first text has one"),
    ],
)
def test_pairs_among_single_texts_are_named_by_their_line(
    lines: list[str], said: str, stock: Stock, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([*lines, *lines]), encoding="utf-8")
    done = tiny.thresher(CALIBRATE, model=stock.head, texts=texts, out=tmp_path / "out")
    assert done.code == 1 and f"{texts}, {said}; make them alike" in done.err


def test_truncated_texts_are_counted(stock: Stock, texts: Path, tmp_path: Path) -> None:
    done = tiny.succeeds(CALIBRATE + " --max-length 5", model=stock.head, texts=texts, out=tmp_path / "out")
    assert "of the texts truncated to 5 tokens" in " ".join(done.out.split())


def test_only_a_line_s_end_ends_a_text(tmp_path: Path) -> None:
    """As in every other file: not U+2028 and its like; a byte order mark is no text."""
    file = tmp_path / "texts.txt"
    file.write_bytes("\ufeffone\r\ntwo\u2028still two\nthree\x0cstill three\n\n".encode())
    assert [example.text for example in read_texts(file)] == ["one", "two\u2028still two", "three\x0cstill three"]
