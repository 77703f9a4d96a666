"""benchmarks/export.py on a tiny run: one record for every point, and no place of the machine in it."""

from pathlib import Path

import export
import export_exact
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

    monkeypatch.setattr(export, "make_onnx", ours)
    file, texts = tmp_path / "results.jsonl", tmp_path / "texts.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n' * 9, encoding="utf-8")
    for _ in range(2):
        words = f"--run {run} --texts {texts} --tokens 5,99 --batches 1,3 --rounds 3 --out {file}"
        export.main([*words.split(), "--runtimes", "onnxruntime", "--dtypes", "fp32"])
    rows = read_rows(file)
    assert [(row["batch"], row["tokens"]) for row in rows] == [(1, 5), (1, 32), (3, 5), (3, 32)]
    for row in rows:
        assert FIELDS | {"relative_flops", "device", "versions"} <= set(row)
        assert 0 < row["relative_flops"] < 1 and row["pruned_over_stock"] > 0
        assert set(row["milliseconds"]) - {"engine cpu", "engine onnx"} == {"stock", "pruned", "dense"}
        assert ("engine onnx" in row["milliseconds"]) == (row["batch"] == 1)
    assert str(run.parent) not in file.read_text()
    assert "onnxruntime fp32, batch 1, 5 tokens: " in capsys.readouterr().out


def test_all_take_turns() -> None:
    seen: list[str] = []
    export.interleaved({name: (lambda name=name: seen.append(name)) for name in "ab"}, 2)
    assert "".join(seen) == "ababab"


def test_a_whole_file_is_compared(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, out = tmp_path / "texts.jsonl", tmp_path / "exactness.jsonl"
    texts.write_text('{"text": "good film and bad plot"}\n{"text": "bad"}\n' * 20, encoding="utf-8")
    export_exact.main(f"--run {run} --texts {texts} --out {out}".split())
    (row,) = read_rows(out)
    assert row["rows"] == 40 and row["largest_difference"] <= 1e-5 and row["at_a_threshold"] == 0
    assert "40 texts: within" in capsys.readouterr().out and str(tmp_path) not in out.read_text()
