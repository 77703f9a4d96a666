"""thresher quantize: a run of its own in static int8, from a named task and from own files."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.engine.backends.linear import check_int8
from thresher.engine.scales import SCALES, read_scales
from thresher.errors import ConfigError, DataError
from thresher.jobs.quantize import calibration_rows
from thresher.tasks import load_file_task

QUANTIZE = "quantize {run} --train {rows} --out {out}"

try:
    check_int8()
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)


def test_own_files(finished: Path, stock: Stock, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "int8"
    done = tiny.succeeds(QUANTIZE + " --json", run=finished, rows=stock.rows, out=out)
    found = done.json()
    task = load_file_task(stock.rows)
    assert found["calibration"] == {"rows": len(task.train), "source": "training rows of rows"}
    assert found["quality"]["split"] == "held_out"
    assert found["quality"]["rows"] == len(task.test["held_out"])
    assert found["quality"]["fp32"]["agreement"] == 1.0
    assert 0 < found["quality"]["int8-static"]["kept"] <= 1
    for words in ("int8, dynamic", "int8-static", "score", "agreement", "kept", "saved"):
        assert words in done.err
    manifest = tiny.manifest(out)
    assert {name: found[name] for name in manifest["quantization"]} == manifest["quantization"]
    assert {**tiny.manifest(finished), "quantization": manifest["quantization"]} == manifest
    assert len(read_scales(out)) == tiny.LAYERS
    assert tiny.tree(out) == tiny.tree(finished) | {SCALES}
    assert tiny.tree(tmp_path) >= {"runs/int8"} and len(list((tmp_path / "runs").iterdir())) == 1


def test_a_run_knows_its_own_files(stock: Stock, tmp_path: Path) -> None:
    """Where they are what they were; a file with the name of a task is no reason to load that."""
    rows = Path(shutil.copy(stock.rows, tmp_path / "sst2.csv"))
    places = {"model": stock.head, "rows": rows, "tmp": tmp_path}
    tiny.succeeds("prune {model} --train {rows} --max-steps 1 --out {tmp}/run", **places)
    done = tiny.succeeds("quantize {tmp}/run --out {tmp}/int8 --static-only --json", **places).json()
    task = load_file_task(rows)
    assert done["calibration"] == {"rows": len(task.train), "source": "training rows of sst2"}
    assert (done["quality"]["split"], done["quality"]["rows"]) == ("held_out", len(task.test["held_out"]))
    with rows.open("a", encoding="utf-8") as file:
        file.write("one more film,positive\n")
    said = tiny.thresher("quantize {tmp}/run --out {tmp}/other", **places)
    assert said.code == 2 and "was trained on your own files; give its training rows, with labels" in said.err


def test_a_calibrated_run_does_not_claim_training(stock: Stock, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(text for text, _ in tiny.sentences(90)), encoding="utf-8")
    places = {"model": stock.head, "tmp": tmp_path}
    tiny.succeeds("calibrate {model} --texts {tmp}/texts.txt --out {tmp}/run", **places)
    done = tiny.thresher("quantize {tmp}/run --out {tmp}/out", **places)
    assert done.code == 2 and "calibrated on your own texts; give its training rows, with labels" in done.err


def test_own_test_rows_and_fewer_texts(finished: Path, stock: Stock, tmp_path: Path) -> None:
    call = QUANTIZE + " --test {test} --rows 5"
    done = tiny.succeeds(call, run=finished, rows=stock.rows, test=stock.test, out=tmp_path / "out")
    assert done.err == "" and "rows test, 16 rows" in done.out
    assert "calibrated on 5 training rows" in done.out
    assert tiny.manifest(tmp_path / "out")["quantization"]["calibration"]["rows"] == 5


def test_the_quantized_run_is_a_run(finished: Path, stock: Stock, tmp_path: Path) -> None:
    """Every other command takes it, and fp32 gives what it gave before."""
    out = tmp_path / "out"
    tiny.succeeds(QUANTIZE, run=finished, rows=stock.rows, out=out)
    places = {"test": stock.test}
    before, after = (
        tiny.succeeds("eval {run} --test {test} --json", run=run, **places).json() for run in (finished, out)
    )
    assert before["splits"] == after["splits"]
    tiny.succeeds("explain {run} 'the film is good'", run=out)
    bench = "bench {run} --test {test} --engines thresher --rounds 1 --no-memory --rows 8 --json"
    rows = {(row["engine"], row["dtype"]) for row in tiny.succeeds(bench, run=out, **places).json()["rows"]}
    assert {("thresher dense", "int8-static"), ("thresher pruned", "int8-static")} <= rows


def test_a_named_task_and_never_its_test_rows(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sst2").mkdir()
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(64)]
    tiny.write_rows(tmp_path / "sst2" / "train.jsonl", rows)  # all the test rows among them
    tiny.write_rows(tmp_path / "sst2" / "validation.jsonl", rows[40:])
    command = f"prune {{model}} --task sst2 --data {{data}} --out {{run}} {tiny.QUICK}"
    places = {"data": tmp_path, "run": tmp_path / "run", "out": tmp_path / "out"}
    tiny.succeeds(command, model=stock.head, **places)
    found = tiny.succeeds("quantize {run} --data {data} --out {out} --json", **places).json()
    assert found["task"] == "sst2"
    assert found["quality"]["split"] == "validation" and found["quality"]["rows"] == 24
    assert found["calibration"]["rows"] <= 40
    again = tiny.thresher("quantize {run} --task sst2 --data {data} --out {out}", **places)
    assert again.code == 1 and "already holds a run" in again.err
    tiny.succeeds("quantize {run} --task sst2 --data {data} --out {out} --overwrite", **places)


def test_a_regression(stock: Stock, tmp_path: Path) -> None:
    rows = [{"text": text, "label": (i % 7) / 3} for i, (text, _) in enumerate(tiny.sentences(48))]
    file = tiny.write_rows(tmp_path / "values.csv", rows)
    places = {"model": stock.bare, "rows": file, "run": tmp_path / "run", "out": tmp_path / "out"}
    tiny.succeeds(f"prune {{model}} --train {{rows}} --out {{run}} {tiny.QUICK}", **places)
    quality = tiny.succeeds(QUANTIZE + " --json", **places).json()["quality"]
    assert set(quality["fp32"]["metrics"]) == {"pearson", "spearman", "score"}
    assert -1 <= quality["agreement"] <= 1


def test_a_processor_without_exact_int8(
    finished: Path, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scales are those of fp8, too, which a GPU in the same machine may have."""

    def refuse() -> None:
        raise ConfigError("this processor's int8 products saturate (it has no VNNI); use fp32 or bf16")

    monkeypatch.setattr("thresher.evaluation.int8.check_int8", refuse)
    done = tiny.succeeds(QUANTIZE, run=finished, rows=stock.rows, out=tmp_path / "out")
    assert "fp8, for GPUs" in done.out and "int8, dynamic" not in done.out
    assert "not measured: int8, int8-static (this processor's int8 products saturate (it has no VNNI))" in done.out


def test_quantizing_twice_is_refused(finished: Path, stock: Stock, tmp_path: Path) -> None:
    tiny.succeeds(QUANTIZE, run=finished, rows=stock.rows, out=tmp_path / "out")
    done = tiny.thresher(QUANTIZE, run=tmp_path / "out", rows=stock.rows, out=tmp_path / "again")
    assert done.code == 1
    assert "is already quantized; give the run that it was made from" in done.err
    shutil.rmtree(tmp_path / "out")
    assert tiny.tree(tmp_path) == set()


def test_only_training_rows_that_are_not_test_rows(stock: Stock) -> None:
    task = load_file_task(stock.rows)
    test = {"test": task.train[::2]}
    assert calibration_rows(replace(task, test=test), 999) == task.train[1::2]
    assert len(calibration_rows(task, 7)) == 7
    with pytest.raises(DataError, match="no training rows that are not test rows too"):
        calibration_rows(replace(task, test={"test": task.train}), 999)


def test_help_has_an_example() -> None:
    said = " ".join(tiny.succeeds("quantize --help").out.split())
    assert "Example: thresher quantize" in said and "--json" in said
    assert "quantize" in tiny.succeeds("--help").out
