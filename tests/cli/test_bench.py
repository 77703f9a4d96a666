"""thresher bench on a tiny run: every contender, honest fields, missing rows by name, a record file."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.cli import tiny
from tests.cli.bad.case import three_classes
from tests.cli.conftest import Stock
from thresher import hardware
from thresher.cli.bench import _legend, _missing_rows, _table, _unsteady
from thresher.cli.output import SAME
from thresher.engine import choose
from thresher.evaluation import contenders, lineup, peaks
from thresher.evaluation.contenders import COMPILED, Contender, Spec
from thresher.jobs.bench import calibration_rows, calibration_texts
from thresher.tasks import Example
from thresher.tasks.encode import Encoded

BENCH = "bench {run} --test {test} --rounds 2 --batch-size 4 --rows 10"


def test_bench_reports_every_contender(
    finished: Path, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineup, "missing_package", lambda engine, dtype: "onnx")
    monkeypatch.setattr(lineup, "find_spec", lambda name: None)  # as where the extra was not installed
    record = tmp_path / "records" / "bench.jsonl"
    call = BENCH + " --no-memory --record {record} --json"
    found = tiny.succeeds(call, run=finished, test=stock.test, record=record)
    result = found.json()
    assert json.loads(record.read_text(encoding="utf-8")) == result
    rows = {(row["engine"], row["dtype"]): row for row in result["rows"]}
    assert {("hugging face", "fp32"), ("hugging face, sorted", "fp32")} <= set(rows)
    assert {("thresher dense", "fp32"), ("thresher pruned", "fp32"), ("thresher pruned", "int8")} <= set(rows)
    absent = {(row["engine"], row["dtype"]): row["why"] for row in result["missing"]}
    assert "onnx is not installed; pip install 'thresher[bench]'" in absent[("onnxruntime, sorted", "int8")]
    assert set(absent) >= {("onnxruntime", "fp32"), ("openvino", "fp32"), ("openvino", "int8")}
    assert absent.keys() >= {("thresher export pruned, onnxruntime", dtype) for dtype in ("fp32", "int8-static")}
    said = [line for line in found.err.splitlines() if "pip install 'thresher[bench]'" in line]
    assert said == ["  onnx is not installed; pip install 'thresher[bench]'"], "once, however many rows it costs"
    assert rows[("hugging face", "fp32")]["agreement"] == 1.0
    assert rows[("hugging face", "fp32")]["ratio_hugging_face"] == 1.0
    assert rows[("thresher dense", "fp32")]["agreement"] == 1.0
    assert rows[("thresher dense", "fp32")]["relative_flops"] == 1.0
    assert rows[("thresher dense", "fp32")]["engine_relative_flops"] == 1.0
    assert rows[("thresher pruned", "fp32")]["engine_relative_flops"] < 1.0
    assert rows[("thresher pruned", "fp32")]["relative_flops"] < 1.0
    for row in result["rows"]:
        assert 0 < row["texts_per_s_low"] <= row["texts_per_s"] <= row["texts_per_s_high"]
        assert 0 < row["latency_ms_p50"] <= row["latency_ms_p95"]
        assert 0 <= row["quality"] <= 1
        assert row["peak_mib"] is None


def test_the_dense_rows_are_of_the_base_model_and_bench_says_so(
    finished: Path, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own weights were trained further with tokens dropped: they are no dense model."""
    loaded: dict[str, Path] = {}

    def build(spec: Spec) -> Contender:
        loaded[spec.engine] = spec.path
        return contenders.build(spec)

    monkeypatch.setattr(lineup, "build", build)
    call = BENCH + " --engines hf,thresher --no-memory --json"
    found = tiny.succeeds(call, run=finished, test=stock.test)
    assert found.json()["rivals"] == "the base model head"
    assert "weights of all rows but thresher pruned: the base model head\n" in found.err
    dense = stock.head.resolve()
    assert loaded == {"hugging face": dense, "thresher dense": dense, "thresher pruned": finished}

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "thresher.json").write_text(json.dumps({**tiny.manifest(finished), "base_model": str(tmp_path / "gone")}))
    found = tiny.succeeds(call, run=run, test=stock.test)
    assert found.json()["rivals"] == "this run's own weights, unpruned"
    assert "weights of all rows but thresher pruned: this run's own weights, unpruned\n" in found.err
    assert set(loaded.values()) == {run}


def test_a_run_for_other_classes_is_refused_in_the_words_of_eval(finished: Path, stock: Stock, tmp_path: Path) -> None:
    three_classes(tmp_path, stock, finished)
    places = {"run": tmp_path / "run", "test": stock.test}
    said, evaluated = tiny.thresher(BENCH, **places), tiny.thresher("eval {run} --test {test}", **places)
    assert said == evaluated and said.code == 1
    assert said.err == f"error: {tmp_path / 'run'} has 3 outputs, but task test has 2\n"


def test_relative_flops_are_those_of_eval(finished: Path, stock: Stock) -> None:
    places = {"run": finished, "test": stock.test}
    bench = tiny.succeeds(BENCH + " --rows 999 --engines thresher --no-memory --json", **places).json()
    pruned = next(row for row in bench["rows"] if (row["engine"], row["dtype"]) == ("thresher pruned", "fp32"))
    evaluated = tiny.succeeds("eval {run} --test {test} --device cpu --json", **places).json()
    flops = [value for key, value in _walk(evaluated) if key == "relative_flops" and value is not None]
    assert any(pruned["relative_flops"] == pytest.approx(value, rel=1e-4) for value in flops)


def _walk(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in [(key, inner), *_walk(inner)]]
    return [pair for inner in value for pair in _walk(inner)] if isinstance(value, list) else []


def test_bench_says_whether_pruning_pays_in_a_table_that_fits(finished: Path, stock: Stock) -> None:
    found = tiny.succeeds(BENCH + " --engines thresher --no-memory", run=finished, test=stock.test)
    words = " ".join(found.out.split())
    assert re.search(r"pruned is (as fast as|\d+\.\d\dx (faster|slower) than) dense in", words)
    assert "one text alone: thresher pruned" in words and "rounds of one row differ by up to" in words
    assert "no int8 rival was measured on unsorted texts" in words
    assert max(len(line) for line in found.out.splitlines()) <= 80
    assert "…" not in found.out and "packed" not in found.out


@pytest.mark.parametrize("means", ["classes", "embedding"])
def test_the_widest_table_fits_80_columns(means: str) -> None:
    """Every row that there is on a CPU, with the largest numbers, and what stands below it."""
    numbers = {"texts_per_s": 88733.4, "ratio_hugging_face": 12.34, "ratio_best_rival": 12.34, "latency_ms_p50": 123.4}
    more = {"quality": 0.93432, "agreement": 1.0, "relative_flops": 0.5, "peak_mib": 12345.6, "latency_ms_p95": 1.0}
    more["settled"] = False
    groups = lineup.rows_of(lineup.parse_engines(None, means=means), means=means)
    rows = [
        {"engine": engine, "dtype": group.dtype, "mode": group.mode, **numbers, **more}
        for group in groups
        for engine in group.names
    ]
    result = {"texts": 512, "mean_length": 54.25, "batch_size": 32, "threads": 2, "device_type": "cpu", "missing": []}
    screen = Console(file=io.StringIO(), width=80)
    screen.print(_table({**result, "rows": rows}))
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "onnxruntime sorted" in said and "int8-static" in said and "88733~" in said and "12346" in said
    assert "…" not in said and said.count("88733") == len(rows) >= 30
    for same in SAME:
        legend = _legend({**result, "rows": rows, "means": same})
        assert max(map(len, (said + legend).splitlines())) <= 80, legend


def test_missing_rows_are_named_where_they_have_several_reasons() -> None:
    rows = [{"engine": "openvino", "dtype": dtype, "mode": None, "why": "no time"} for dtype in ("fp32", "int8")]
    assert _missing_rows(rows) == [("2 rows, as marked in the table", "no time")]
    assert _missing_rows(rows[:1]) == [("openvino fp32", "no time")]
    other = {**rows[0], "engine": "onnxruntime", "why": "not installed"}
    assert _missing_rows([*rows, other]) == [
        ("openvino fp32; openvino int8", "no time"),
        ("onnxruntime fp32", "not installed"),
    ]


def test_a_row_whose_rounds_disagree_is_marked() -> None:
    rates = {"texts_per_s": 100.0, "texts_per_s_low": 60.0, "texts_per_s_high": 130.0, "mode": None, "dtype": "bf16"}
    rows = [{"engine": engine, **rates, "settled": engine == "hugging face"} for engine in ("hugging face", "openvino")]
    said = _unsteady(rows)
    assert "differ by up to 70% (HF bf16)" in said and "did not settle: openvino bf16\n" in said
    assert "lie within 10% of the median: measure with more --rounds, or on an idle machine" in said
    assert "settle" not in _unsteady(rows[:1])
    assert "did not settle: all rows\n" in _unsteady([{**row, "settled": False} for row in rows])


def test_one_round_agrees_with_nothing(finished: Path, stock: Stock) -> None:
    call = "bench {run} --test {test} --engines hf --rounds 1 --rows 4 --no-memory --json"
    found = tiny.succeeds(call, run=finished, test=stock.test)
    assert [row["settled"] for row in found.json()["rows"]] == [False] * len(found.json()["rows"])
    assert "did not settle: all rows" in found.err


def test_bench_without_our_engine_gives_no_verdict(finished: Path, stock: Stock) -> None:
    found = tiny.succeeds(BENCH + " --engines hf --no-memory --json", run=finished, test=stock.test)
    assert found.json()["verdict"] is None
    assert "no verdict on pruning" in found.err


def test_an_unknown_engine_is_one_line(finished: Path, stock: Stock) -> None:
    found = tiny.thresher(BENCH + " --engines tensorrt", run=finished, test=stock.test)
    assert found.code == 2
    assert "error: engine 'tensorrt' is not one of: hf, onnxruntime, openvino, thresher" in found.err


@pytest.mark.slow
def test_bench_measures_onnxruntime_and_openvino(finished: Path, stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a row of each alone: all of them take a process of their own."""
    weighed, every = [(name, "fp32") for name in ("hugging face", "onnxruntime", "openvino")], peaks.to_measure

    def some(*given: Any, **named: Any) -> list[peaks.Pair]:
        return [pair for pair in every(*given, **named) if (pair[0]["engine"], pair[0]["dtype"]) in weighed]

    monkeypatch.setattr(peaks, "to_measure", some)
    for engine, dtype in lineup.NEEDS:
        package = lineup.missing_package(engine, dtype)
        if package is not None:
            pytest.skip(f"needs {package}, of the extra 'bench'")
    call = BENCH + " --engines onnxruntime,openvino --threads 1 --json"
    result = tiny.succeeds(call, run=finished, test=stock.test).json()
    rows = {(row["engine"], row["dtype"]): row for row in result["rows"]}
    for engine in ("onnxruntime", "openvino"):
        for name in (engine, f"{engine}, sorted"):
            assert rows[(name, "fp32")]["agreement"] == 1.0
            assert (name, "int8") in rows
    assert [name for name, row in rows.items() if row["peak_mib"]] == weighed
    assert all(rows[name]["peak_mib"] > 10 for name in weighed)
    assert rows[("onnxruntime", "fp32")]["peak_mib"] < rows[("hugging face", "fp32")]["peak_mib"]
    assert result["calibration"]["source"] == "test texts, unlabelled"


def test_texts_without_labels_have_everything_but_quality(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a good film\n\na bad bad film\nfilm\n", encoding="utf-8")
    call = "bench {run} --texts {texts} --engines thresher --rounds 1 --no-memory --json"
    found = tiny.succeeds(call, run=finished, texts=file)
    result = found.json()
    assert (result["texts"], result["task"]) == (3, None)
    assert result["calibration"] == {"texts": 3, "source": "test texts, unlabelled"}
    assert all(row["quality"] is None and row["agreement"] > 0 for row in result["rows"])


def test_calibration_texts_are_not_the_timed_ones_where_there_are_others() -> None:
    train, test = ([Example(f"{name} {i}", None, 0) for i in range(5)] for name in ("train", "test"))
    assert calibration_texts(train, test, 3) == (train, "training texts")
    assert calibration_texts([], test, 3) == (test[3:], "test texts, unlabelled")
    assert calibration_texts([], test, 5) == (test, "test texts, unlabelled")


def test_scales_of_long_texts_are_found_on_fewer() -> None:
    long = [Encoded([1] * 400, None, None) for _ in range(128)]
    assert len(calibration_rows(long)) == 20 and len(calibration_rows(long[:20])) == 20
    assert len(calibration_rows([Encoded([1] * 8000, None, None) for _ in range(20)])) == 8


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (None, "", "does not exist; give a text file with one text per line"),
        (b"\n \n", "", "has no texts; give one per line"),
        (b"\xff\xfe\x00", "", "is not UTF-8 text"),
        (b"a film", "--task movies", "stands alone; leave out --task"),
    ],
)
def test_bad_texts(finished: Path, tmp_path: Path, content: bytes | None, options: str, says: str) -> None:
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)
    said = tiny.thresher(f"bench {{run}} --texts {{texts}} {options}", run=finished, texts=file)
    assert said.code != 0 and says in " ".join(said.err.split())


@pytest.mark.parametrize("name", ["texts.csv", "texts.CSV", "texts.jsonl", "texts.json", "texts.parquet"])
def test_a_table_is_not_taken_for_lines_of_text(finished: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("id,text,label\n1,a good film,1\n", encoding="utf-8")
    said = tiny.thresher("bench {run} --texts {texts}", run=finished, texts=tmp_path / name)
    assert said.code == 1 and f"{name} is a table; the file must hold one text per line" in said.err


def test_bench_on_nothing_names_every_way_to_give_rows(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    manifest = tiny.manifest(finished)
    manifest["task"]["files"]["train"]["path"] = str(tmp_path / "gone.csv")
    (tmp_path / "run" / "thresher.json").write_text(json.dumps(manifest), encoding="utf-8")
    said = tiny.thresher("bench {run}", run=tmp_path / "run")
    assert said.code == 2
    assert "trained on your own files; give rows to measure on with --texts FILE, --test FILE or --task" in said.err


def test_cuda_without_a_gpu_is_one_line_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "choose_device", lambda: ("cpu", "no CUDA device is available"))
    said = tiny.thresher("bench {run} --device cuda", run=tmp_path / "nowhere")
    assert said.code == 1 and said.out == ""
    assert said.err.strip() == ("error: device cuda is not available here; use --device cpu, and see: thresher doctor")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--device tpu", "device = 'tpu' is not one of: auto, cpu, cuda"),
        ("--dtype fp16", "--dtype fp16 goes with --device cuda"),
        ("--device cuda --dtype int8", "dtype = 'int8' is not one of: fp16, bf16"),
        ("--device cuda --engines openvino", "is not one of: hf, compile, unpadded, thresher"),
    ],
)
def test_bad_settings_of_the_device(finished: Path, options: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "choose_device", lambda: ("cuda", "for this test"))
    said = tiny.thresher(f"bench {{run}} {options}", run=finished)
    assert said.code == 2 and said.err.startswith("error: ") and says in said.err


def test_bench_on_a_gpu_reports_every_contender(
    finished: Path, stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, with rows that are computed on the CPU in fp32 under the names of a GPU's."""

    def build(spec: Spec) -> Contender:
        if spec.engine == COMPILED:
            raise RuntimeError("it does not compile")
        return replace(contenders.build(replace(spec, device="cpu", dtype="fp32", mode=None)), spec=spec)

    monkeypatch.setattr(hardware, "choose_device", lambda: ("cuda", "for this test"))
    monkeypatch.setattr(choose, "gpu_problem", lambda dtype="auto": "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(lineup, "build", build)
    record = tmp_path / "bench.jsonl"
    call = BENCH + " --device cuda --dtype bf16 --no-memory --record {record} --json"
    found = tiny.succeeds(call, run=finished, test=stock.test, record=record)
    result = found.json()
    assert json.loads(record.read_text(encoding="utf-8")) == result
    rows = check_cuda_rows(result, "bf16")
    assert [(row["engine"], row["why"]) for row in result["missing"]] == [
        (COMPILED, "RuntimeError: it does not compile")
    ]
    assert all(row["agreement"] == 1.0 for key, row in rows.items() if key[0] != "thresher pruned")
    assert result["memory"] is None and result["calibration"] is None
    said = " ".join(found.err.split())
    assert "attention of HF; HF sorted: sdpa" in said and "attention of HF eager: eager" in said
    assert "attention of torch unpadded: SDPA of one text at a time" in said
    assert " the best rival, " in said and "no int8 rival" not in said


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what torch.compile warns of is its own affair
def test_bench_on_the_device(finished: Path, stock: Stock) -> None:
    result = tiny.succeeds(BENCH + " --device cuda --json", run=finished, test=stock.test).json()
    rows = check_cuda_rows(result, "fp16")
    assert {row["engine"] for row in result["missing"]} <= {COMPILED}, result["missing"]
    assert all(row["why"] for row in result["missing"])
    assert "NVIDIA" in result["device"] and "triton" in result["versions"]
    assert "max_memory_allocated" in result["memory"] and "max_memory_reserved" in result["memory"]
    assert all(row["peak_mib"] > 0 for row in rows.values())
    # A tiny engine may find room in what other rows have reserved; not all of them do.
    assert any(row["peak_reserved_mib"] > 0 for row in rows.values())
    assert rows[("torch unpadded", "fp16", None)]["attention"] == "torch.nn.attention.varlen"
    assert all(row["agreement"] >= 0.8 for key, row in rows.items() if key[0] != "thresher pruned")


def check_cuda_rows(result: dict[str, Any], half: str) -> dict[tuple[str, str, str | None], dict[str, Any]]:
    """All rows of a GPU are there, but for what did not compile or has no scales, and have all their fields."""
    rows = {(row["engine"], row["dtype"], row["mode"]): row for row in result["rows"]}
    rivals = ("hugging face eager", "hugging face", "hugging face, sorted", COMPILED, "torch unpadded")
    ours = {(name, half, mode) for name in ("thresher dense", "thresher pruned") for mode in ("graph", "sync")}
    eight = {(name, "fp8", "graph") for name in ("thresher dense", "thresher pruned")}  # for quantized runs alone
    expected = {("hugging face", "fp32", None), *((name, half, None) for name in rivals), *ours, *eight}
    absent = {(row["engine"], row["dtype"], row["mode"]) for row in result["missing"]}
    assert set(rows) == expected - absent and absent <= {(COMPILED, half, None), *eight}
    assert list(rows)[0] == ("hugging face", "fp32", None)
    for row in rows.values():
        assert row["batch"] == 4 and row["ms_p50"] > 0 and row["useful_tflops"] > 0
        assert row["sequences_per_s"] == row["texts_per_s"] > 0
        assert 0 < row["latency_ms_p50"] <= row["latency_ms_p95"]
        assert (row["relative_flops"] < 1) == (row["engine"] == "thresher pruned")
    assert result["bench"] == "engines" and result["device_type"] == "cuda"
    assert result["lengths"]["min"] <= result["mean_length"] <= result["lengths"]["max"]
    assert {"device", "versions", "seed", "command"} <= set(result)
    assert result["verdict"]["mode"] in ("graph", "sync") and result["verdict"]["best_rival"] is not None
    return rows
