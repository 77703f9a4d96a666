"""thresher.evaluate_run, calibrate, quantize and bench from Python, on tiny runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.jobs.listening import Listener
from thresher.engine.backends.linear import check_int8
from thresher.engine.scales import SCALES
from thresher.errors import ConfigError, DataError, RunError


def same(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("created", "command")}


def test_evaluate_run_gives_what_the_command_prints(finished: Path, stock: Stock) -> None:
    command = "eval {run} --test {test} --device cpu --json"
    said = tiny.succeeds(command, run=finished, test=stock.test).json()
    result = thresher.evaluate_run(str(finished), test=str(stock.test), device="cpu")
    assert same(result.to_dict()) == same(said)
    assert result.task == "test" and set(result.splits["test"]) == {"dense", "pruned", "unpruned"}
    assert result.dense == "the base model head" and not result.quantized
    request = thresher.EvaluateRequest(run=finished, test=stock.test, device="cpu")
    assert thresher.evaluate_run(request).splits == result.splits


def test_evaluate_run_agrees_with_evaluate_of_the_model_in_memory(finished: Path, stock: Stock) -> None:
    run = thresher.load(finished)
    task = thresher.load_file_task(stock.rows, test=stock.test)
    (own,) = thresher.evaluate_run(finished, task=task, device="cpu").splits.values()
    assert thresher.evaluate(run.model, run.tokenizer, task) == own["pruned"]


def test_evaluate_run_says_which_rows_and_warns_of_those_seen_in_training(finished: Path, stock: Stock) -> None:
    notes: list[str] = []
    result = thresher.evaluate_run(finished, test=stock.rows, device="cpu", note=notes.append)
    assert notes[0].startswith("rows: ") and notes[1].startswith(f"warning: {stock.rows} is the file that the run was")
    assert isinstance(result.remarks, tuple)
    assert thresher.evaluate_run(finished, device="cpu").splits.keys() == {"held_out"}, "the run's own, remembered"


def test_evaluate_run_refuses(finished: Path, stock: Stock) -> None:
    with pytest.raises(ConfigError, match="max_length = 2 is below 4, the smallest allowed value"):
        thresher.evaluate_run(finished, test=stock.test, max_length=2)
    with pytest.raises(ConfigError, match="unknown option 'tests'; EvaluateRequest has: task, data, test"):
        thresher.evaluate_run(finished, tests=stock.test)


def test_calibrate(stock: Stock, tmp_path: Path) -> None:
    texts, listener = tmp_path / "texts.txt", Listener()
    texts.write_text("\n".join(text for text, _ in tiny.sentences(90)), encoding="utf-8")
    out = tmp_path / "run"
    result = thresher.calibrate(stock.head, texts=texts, out=out, agreement=0.95, progress=listener)
    manifest = tiny.manifest(out)
    found = result.to_dict()
    assert found == {"out": str(out), **manifest["training_free"]}
    assert result.goal.agreement == 0.95 and result.fit_texts + result.judge_texts == 90
    assert list(result.fit.thresholds) == [float(value) for value in manifest["thresholds"]]
    assert result.expected.agreement.texts == result.judge_texts
    assert manifest["prune"]["score"] == "value"
    assert listener.stages["trying thresholds"] > 0
    with pytest.raises(RunError, match="already holds a run"):
        thresher.calibrate(stock.head, texts=texts, out=out)
    with pytest.raises(ConfigError, match="agreement = 99 must be above 50%"):
        thresher.calibrate(stock.head, texts=texts, out=tmp_path / "other", agreement=99)


def test_calibrate_with_rows_in_memory(stock: Stock, tmp_path: Path) -> None:
    task = thresher.load_file_task(stock.rows)
    with pytest.raises(DataError, match=f"{len(task.selection)} different texts are too few"):
        thresher.calibrate(stock.head, task=task, out=tmp_path / "run")


def test_quantize(finished: Path, stock: Stock, tmp_path: Path) -> None:
    try:
        check_int8()
    except ConfigError as why:
        pytest.skip(str(why))
    out, listener = tmp_path / "int8", Listener()
    result = thresher.quantize(finished, out=out, train=stock.rows, test=stock.test, rows=20, progress=listener)
    block = tiny.manifest(out)["quantization"]
    assert result.to_dict() == {"run": str(finished), "out": str(out), "task": "rows", **block}
    assert result.calibration_rows == 20 and result.rows == 16
    assert set(result.measured) == {"fp32", "int8", "int8-static", "fp8"}
    assert result.measured["fp32"].agreement == 1.0
    assert listener.stages == {"calibrating": 20, "measuring": 4 * 16}
    assert (out / SCALES).is_file()
    with pytest.raises(ConfigError, match="rows = 0 is below 1"):
        thresher.quantize(finished, out=tmp_path / "none", train=stock.rows, rows=0)


def test_quantize_takes_the_run_s_rows_in_memory(finished: Path, stock: Stock, tmp_path: Path) -> None:
    task = thresher.load_file_task(stock.rows)
    with pytest.raises(ConfigError, match="the task is given with its rows; leave out train"):
        thresher.quantize(finished, out=tmp_path / "int8", task=task, train=stock.rows)


def test_bench(finished: Path, stock: Stock, tmp_path: Path) -> None:
    record, listener, before = tmp_path / "bench.jsonl", Listener(), torch.get_num_threads()
    result = thresher.bench(
        finished,
        test=stock.test,
        engines="hf,thresher",
        rounds=1,
        rows=8,
        memory=False,
        threads=2,
        record=record,
        progress=listener,
    )
    found = result.to_dict()
    assert record.read_text(encoding="utf-8").count("\n") == 1
    assert found["rows"] == result.rows and found["threads"] == 2 and torch.get_num_threads() == before
    assert {row["engine"] for row in result.rows} >= {"hugging face", "thresher dense", "thresher pruned"}
    assert result.rivals == "the base model head" and result.verdict is not None
    assert found["verdict"]["speedup"] == result.verdict.speedup
    assert listener.stages["racing"] == 2 * len(result.rows)


def test_bench_refuses(finished: Path, stock: Stock, tmp_path: Path) -> None:
    pairs, texts = tmp_path / "pairs.txt", tmp_path / "texts.txt"
    pairs.write_text("a film\tgood\nthe plot\tbad\n", encoding="utf-8")
    texts.write_text("a film\nthe plot\n", encoding="utf-8")
    with pytest.raises(DataError, match="is for single texts, but was given pairs of texts"):
        thresher.bench(finished, texts=pairs)
    with pytest.raises(ConfigError, match="rounds = 0 is below 1, the smallest allowed value"):
        thresher.bench(finished, texts=texts, rounds=0)
    with pytest.raises(ConfigError, match="stands alone; leave out --task"):
        thresher.bench(finished, texts=texts, test=stock.test)
    with pytest.raises(ConfigError, match="texts = .* cannot be a path: "):
        thresher.bench(finished, texts="a\x00b")


def test_bench_of_texts_without_our_engine(finished: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a film\nthe plot\n", encoding="utf-8")
    result = thresher.bench(thresher.BenchRequest(run=finished, texts=texts, engines="hf", rounds=1, memory=False))
    assert result.verdict is None and result.to_dict()["task"] is None and result.rows[0]["quality"] is None
