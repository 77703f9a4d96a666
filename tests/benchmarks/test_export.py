"""benchmarks/export.py on a tiny run: one record for every point, and no place of the machine in it."""

import shutil
import subprocess
from pathlib import Path

import export
import export_browser
import export_exact
import export_page
import export_subject
import export_text
import export_turns
import in_chromium
import numpy as np
import pytest
from measuring import read_rows

from thresher.core.plan import PruningPlan
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.weights import read_weights
from thresher.evaluation.rivals import Arrays
from thresher.exporting.folder import write_graph
from thresher.models.checkpoint import load_dense

FIELDS = {"model", "runtime", "dtype", "batch", "tokens", "pruned_over_stock", "pruned_over_own_dense"}


def test_measures_every_point_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stock export takes torch's exporter half a minute: here our own dense graph stands for it."""

    def ours(folder: Path, file: Path, example: Arrays) -> None:
        weights = read_weights(load_dense(folder, whole=True)[0])
        form = Form(types="token_type_ids" in example)
        write_graph(build_model(weights, PruningPlan.dense(len(weights.layers)), form=form), file)

    monkeypatch.setattr(export_subject, "make_onnx", ours)
    file, texts = tmp_path / "results.jsonl", tmp_path / "texts.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n' * 9, encoding="utf-8")
    for points in ("--tokens 5,99 --batches 1,3", "--tokens 5 --batches 3"):
        words = f"--run {run} --texts {texts} {points} --rounds 2 --threads 1 --out {file}"
        export.main([*words.split(), "--runtimes", "onnxruntime", "--dtypes", "fp32"])
    rows = read_rows(file)
    assert [(row["batch"], row["tokens"]) for row in rows] == [(1, 5), (1, 32), (3, 32), (3, 5)]
    for row in rows:
        assert FIELDS | {"relative_flops", "device", "versions"} <= set(row)
        assert 0 < row["relative_flops"] < 1 and row["pruned_over_stock"] > 0
        assert set(row["milliseconds"]) - {"engine cpu", "engine onnx"} == {"stock", "pruned", "dense"}
        assert ("engine onnx" in row["milliseconds"]) == (row["batch"] == 1)
    assert str(run.parent) not in file.read_text()
    assert "onnxruntime fp32, batch 1, 5 tokens: " in capsys.readouterr().out


class Told:
    """Answers at once, and remembers what it was asked."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def ask(self, *, places: list[int]) -> list[float]:
        self.seen.append(f"{self.name}{''.join(map(str, places))}")
        return [30.0 for _ in places]


def test_all_take_turns_on_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_turns, "PAUSE", 0.0)
    seen: list[str] = []
    found = export_turns.turns({name: Told(name, seen) for name in "ab"}, batches=3, rounds=2)  # type: ignore[misc] # no process behind it
    # 60 ms a turn are two calls; the second round begins with the other one, where the first ended.
    assert seen == ["a000", "b000", "a01", "b01", "b20", "a20"]
    assert {name: values.shape for name, values in found.items()} == {"a": (2, 2), "b": (2, 2)}


def test_texts_have_the_length_asked_for_and_real_pairs(run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"source": "x", "query": "good film", "document": "bad plot"}\n' * 3, encoding="utf-8")
    subject = export_subject.Subject(run, texts, tmp_path / "work", 1)
    found = subject.batches(batch=2, tokens=12, count=3)
    assert [arrays["input_ids"].shape for arrays in found] == [(2, 12)] * 3
    tokenizer = subject.checkpoint.tokenizer
    whole = tokenizer("good film", "bad plot bad plot bad plot bad plot", truncation=True, max_length=12)
    assert found[0]["input_ids"][0].tolist() == whole["input_ids"]
    again = export_turns.read_batches(export_turns.write_batches(tmp_path / "batches.npz", found))
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(found, again, strict=True) for name in a)


def test_a_whole_file_is_compared(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, out = tmp_path / "texts.jsonl", tmp_path / "exactness.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n{"text": "bad"}\n' * 20, encoding="utf-8")
    export_exact.main(f"--run {run} --texts {texts} --out {out}".split())
    (row,) = read_rows(out)
    assert row["rows"] == 40 and row["largest_difference"] <= 1e-5 and row["at_a_threshold"] == 0
    assert "40 texts: largest_difference" in capsys.readouterr().out and str(tmp_path) not in out.read_text()


def test_a_file_in_parts_and_in_int8(run: Path, tmp_path: Path) -> None:
    """A file in two parts has two records; in int8 the scales are the run's own."""
    texts, out = tmp_path / "texts.jsonl", tmp_path / "exactness.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n{"text": "bad"}\n' * 20, encoding="utf-8")
    for part in ("--rows 30", "--skip 30"):
        export_exact.main(f"--run {run} --texts {texts} {part} --out {out}".split())
    assert [(row["skipped"], row["rows"]) for row in read_rows(out)] == [(0, 30), (30, 10)]
    (found,) = export_page.whole_files(read_rows(out))
    assert len(found) == 2 and "| 40 |" in export_page.exactness(read_rows(out))
    quantized, out8 = tmp_path / "int8", tmp_path / "int8.jsonl"
    shutil.copytree(run, quantized)
    subject = export_subject.Subject(run, texts, tmp_path / "work", 1)
    shutil.copy(subject.scales_file, quantized)
    export_exact.main(f"--run {quantized} --texts {texts} --int8 --out {out8}".split())
    (row,) = read_rows(out8)
    assert row["same_counts_alone"] == row["same_label_alone"] == 1 and row["same_label_as_the_engine"] >= 0.99
    assert "| 40 | 100.00% |" in export_page.exactness_int8([row])


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(in_chromium.browser() is None, reason="no headless Chromium; apt-get install it")
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm to fetch onnxruntime-web with")
def test_graphs_take_turns_in_a_page(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_subject.Subject, "stock", lambda self, *way: self.ours("dense", *way, one=True))
    texts, out = tmp_path / "texts.jsonl", tmp_path / "results.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n' * 9, encoding="utf-8")
    try:
        export_browser.main(f"--run {run} --texts {texts} --tokens 12 --rounds 2 --dtypes fp32 --out {out}".split())
    except subprocess.CalledProcessError as why:
        pytest.skip(f"npm cannot fetch the packages here: {why}")
    (row,) = read_rows(out)
    assert FIELDS <= set(row) and (row["runtime"], row["batch"], row["tokens"]) == ("onnxruntime-web", 1, 12)
    assert 0 < row["relative_flops"] < 1 and row["pruned_over_stock"] > 0 and str(tmp_path) not in out.read_text()


def test_one_text_through_every_contender(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out, work = tmp_path / "texts.jsonl", tmp_path / "one_text.jsonl", tmp_path / "work"
    texts.write_text('{"text": "good film and bad plot"}\n{"text": "bad"}\n' * 4, encoding="utf-8")
    subject = export_subject.Subject(run, texts, work, 1)
    specs = {
        "onnxruntime fp32, dense": subject.graph("dense", "onnxruntime", "fp32"),
        "onnxruntime fp32, pruned": subject.graph("pruned", "onnxruntime", "fp32"),
        "engine cpu fp32, pruned": subject.engine("cpu", "fp32"),
    }
    monkeypatch.setattr(export_text, "contenders_of", lambda subject, runtimes: specs)
    export_text.main(f"--run {run} --texts {texts} --work {work} --rounds 2 --threads 1 --out {out}".split())
    (row,) = read_rows(out)
    assert set(row["p50"]) == set(specs) and row["texts_timed"] == 8 and row["median_tokens"] == 5
    assert set(row["rival_over_best"]) == {"onnxruntime fp32, dense"} and 0 < row["relative_flops"] < 1
    assert "5 tokens, FLOPs" in capsys.readouterr().out and str(tmp_path) not in out.read_text()
