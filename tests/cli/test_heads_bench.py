"""thresher bench for rerankers, embedding models and several labels: against what their users have."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli import tiny
from tests.cli.kinds import calibrated, pair_lines, save_models, words
from thresher.evaluation import lineup
from thresher.evaluation.alone import Peak
from thresher.evaluation.contenders import STACK, Spec, build
from thresher.evaluation.quality import encoded_inputs
from thresher.models.checkpoint import load_dense
from thresher.tasks import Example

BENCH = "bench {runs}/{kind} --rounds 1 --batch-size 16 --no-memory --json"
SAME = {
    "embedder": "agree: mean cosine to HF fp32",
    "reranker": "agree: correlation with HF fp32",
    "labels": "agree: the same labels, all of them, as HF fp32",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    return calibrated(folder)


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_bench_sets_the_users_stack_beside(kind: str, folder: Path, runs: Path) -> None:
    pytest.importorskip("sentence_transformers")
    call = BENCH + " --texts {dir}/{kind}.txt --rows 32 --engines st,hf,thresher"
    done = tiny.succeeds(call, runs=runs, dir=folder, kind=kind)
    found = done.json()
    rows = {(row["engine"], row["dtype"]): row for row in found["rows"]}
    assert list(rows)[0] == ("hugging face", "fp32") and found["rivals"] == f"the base model {kind}"
    for name in (STACK, f"{STACK}, sorted", "thresher dense"):
        assert rows[name, "fp32"]["agreement"] == pytest.approx(1.0, abs=1e-5), name
    assert 0.5 < rows["thresher pruned", "fp32"]["agreement"] <= 1.0001
    assert rows["thresher pruned", "fp32"]["relative_flops"] < 1
    assert all(row["quality"] is None and row["timed_texts"] == 32 for row in found["rows"])
    assert found["verdict"]["stack"]["engine"].startswith(STACK)
    said = " ".join(done.err.split())
    assert SAME[kind] in said and "ST: sentence-transformers, padded" in said and " sentence transformers" in said
    assert "sentence-transformers" in found["versions"] and found["means"] in ("score", "embedding")
    assert max(map(len, done.err.splitlines())) <= 120


def test_labels_agree_in_all_of_them(folder: Path, runs: Path) -> None:
    call = BENCH + " --texts {dir}/labels.txt --rows 32 --engines hf,thresher"
    done = tiny.succeeds(call, runs=runs, dir=folder, kind="labels")
    rows = {(row["engine"], row["dtype"]): row for row in done.json()["rows"]}
    assert rows["thresher dense", "fp32"]["agreement"] == 1.0 and done.json()["verdict"]["stack"] is None
    assert SAME["labels"] in " ".join(done.err.split()) and "ST:" not in done.err
    refused = tiny.thresher(BENCH + " --texts {dir}/labels.txt --engines st", runs=runs, dir=folder, kind="labels")
    assert refused.code == 2 and "engine 'st' is not one of: hf, onnxruntime, openvino, thresher" in refused.err


def test_rows_with_labels_have_a_score(runs: Path, tmp_path: Path) -> None:
    """Of a reranker by query; of embeddings two texts a row, in the order of the pairs."""
    rows = [dict(zip(("text", "pair"), line.split("\t"), strict=True)) for line in pair_lines(24)]
    graded = tiny.write_rows(tmp_path / "graded.jsonl", [{**row, "label": i % 3} for i, row in enumerate(rows)])
    call = BENCH + " --test {test} --pair-column pair --engines thresher"
    for kind, texts in (("reranker", 24), ("embedder", 48)):
        found = tiny.succeeds(call, runs=runs, kind=kind, test=graded).json()
        assert found["texts"] == texts and all(-1 <= row["quality"] <= 1 for row in found["rows"])
        one = "eval {runs}/{kind} --test {test} --pair-column pair --device cpu --json"
        wanted = tiny.succeeds(one, runs=runs, kind=kind, test=graded).json()["splits"]["test"]["pruned"]["metrics"]
        pruned = next(r for r in found["rows"] if (r["engine"], r["dtype"]) == ("thresher pruned", "fp32"))
        assert pruned["quality"] == pytest.approx(wanted["score"], abs=1e-4)


def test_rows_of_a_task_without_labels_have_none(runs: Path, tmp_path: Path) -> None:
    rows = [dict(zip(("text", "pair"), line.split("\t"), strict=True)) for line in pair_lines(24)]
    test = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    call = BENCH + " --test {test} --pair-column pair --engines thresher"
    found = tiny.succeeds(call, runs=runs, kind="reranker", test=test).json()
    assert found["task"] == "rows" and all(row["quality"] is None for row in found["rows"])


def test_without_the_library_its_rows_are_missing(folder: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineup, "find_spec", lambda name: None)
    call = BENCH + " --texts {dir}/embedder.txt --rows 16 --engines st"
    found = tiny.succeeds(call, runs=runs, dir=folder, kind="embedder").json()
    why = "sentence-transformers is not installed; pip install 'thresher[st]'"
    assert [(row["engine"], row["why"]) for row in found["missing"]] == [(STACK, why), (f"{STACK}, sorted", why)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_the_stack_computes_what_it_gives_for_texts(kind: str, dtype: str, folder: Path) -> None:
    """Its tokens come ready, and nothing else is other than in a call with texts."""
    library = pytest.importorskip("sentence_transformers")
    model, tokenizer = load_dense(folder / kind, whole=True)
    if kind == "embedder":
        texts = words(9)
        rows = [Example(text, None, None) for text in texts]
        wanted = library.SentenceTransformer(str(folder / kind), device="cpu").encode(texts)
    else:
        pairs = [tuple(line.split("\t")) for line in pair_lines(9)]
        rows = [Example(*pair, None) for pair in pairs]
        wanted = library.CrossEncoder(str(folder / kind), device="cpu").predict(pairs)[:, None]
    means = "embedding" if kind == "embedder" else "score"
    spec = Spec(STACK, dtype, folder / kind, pad_id=0, threads=1, means=means)
    encoded = encoded_inputs(model, tokenizer, rows, max_length=None).rows
    found, kept = build(spec).run(encoded)
    np.testing.assert_allclose(found, wanted, atol=1e-5 if dtype == "fp32" else 0.1)
    assert kept is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converters warn of each other's ways
def test_an_embedder_is_exported_with_its_pooling(folder: Path, tmp_path: Path) -> None:
    """Padding must not reach the mean: texts of two lengths in one batch."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from thresher.evaluation.rivals import make_onnx, open_onnxruntime, padded

    model, tokenizer = load_dense(folder / "embedder", whole=True)
    encoded = encoded_inputs(model, tokenizer, [Example(text, None, None) for text in words(6)], max_length=None).rows
    make_onnx(folder / "embedder", tmp_path / "fp32.onnx", padded(encoded[:2], 0))
    forward = open_onnxruntime(tmp_path / "fp32.onnx", threads=1)
    spec = Spec("hugging face", "fp32", folder / "embedder", pad_id=0, threads=1, means="embedding")
    np.testing.assert_allclose(forward(padded(encoded, 0)), build(spec).run(encoded)[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converters warn of each other's ways
def test_an_embedder_is_converted_for_openvino(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    from thresher.evaluation.rivals import make_openvino, open_openvino, padded

    model, tokenizer = load_dense(folder / "embedder", whole=True)
    encoded = encoded_inputs(model, tokenizer, [Example(text, None, None) for text in words(6)], max_length=None).rows
    make_openvino(folder / "embedder", tmp_path / "fp32.xml", padded(encoded[:2], 0))
    forward = open_openvino(tmp_path / "fp32.xml", precision="f32", threads=1)
    spec = Spec("hugging face", "fp32", folder / "embedder", pad_id=0, threads=1, means="embedding")
    np.testing.assert_allclose(forward(padded(encoded, 0)), build(spec).run(encoded)[0], atol=1e-4)


def test_a_race_that_takes_too_long_says_what_it_left_out(
    folder: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "bench {runs}/embedder --texts {dir}/embedder.txt --batch-size 16 --no-memory --engines hf --json"
    done = tiny.succeeds(f"{call} --seconds 0.0001", runs=runs, dir=folder)
    found = done.json()
    assert found["texts"] == 8 and found["rounds"] == 1
    assert "8 of 90 texts (--rows decides)" in found["limited"] and "to end in time, only: 8 of 90 texts" in done.err
    whole = tiny.succeeds(f"{call} --seconds 600", runs=runs, dir=folder).json()
    assert whole["texts"] == 90 and whole["rounds"] == 5 and whole["limited"] == []
    monkeypatch.setattr("thresher.evaluation.peaks.peak_memory", lambda *given: Peak(7.0))
    short = tiny.succeeds(call.replace("--no-memory", "--rounds 1"), runs=runs, dir=folder).json()
    assert all(row["peak_mib"] == 7.0 for row in short["rows"]) and short["limited"] == []
    monkeypatch.setattr("thresher.evaluation.peaks.peak_memory", lambda *given: time.sleep(0.01) or Peak(7.0))
    short = tiny.succeeds(call.replace("--no-memory", "--seconds 0.0001"), runs=runs, dir=folder).json()
    peaks = {(row["engine"], row["dtype"]): row["peak_mib"] for row in short["rows"]}
    assert peaks.pop(("hugging face", "fp32")) == 7.0 and set(peaks.values()) == {None}
    assert short["limited"][-1] == "peak memory of 1 row"
    refused = tiny.thresher(f"{call} --seconds 0", runs=runs, dir=folder)
    assert refused.code == 2 and "seconds = 0 must be above 0" in refused.err
