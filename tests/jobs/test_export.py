"""Exporting a run: a folder that runtimes open, whole or not at all, and refused before any work."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thresher
from tests.engine.graphs.running import gated
from tests.models.families import tiny_model
from tests.models.sentences import PAIRS, TEXTS, WORDS
from tests.words import word_tokenizer
from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.errors import ConfigError, ModelError, RunError
from thresher.jobs import export as module
from thresher.jobs.export import ExportRequest
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import save
from thresher.models.heads import set_head_


def saved(folder: Path, model: Any, *, types: bool = True, length: int = 16) -> Path:
    tokenizer = word_tokenizer(WORDS, model_max_length=64)
    if not types:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    save(model, tokenizer, folder, about={"recipe": {"max_length": length}})
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("export") / "run", gated("bert").float())


def read(out: Path, texts: list[Any], **more: Any) -> dict[str, Any]:
    """By means of onnxruntime and the folder's own tokenizer, as a user does it."""
    import onnxruntime
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    session = onnxruntime.InferenceSession(str(out / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    pairs = isinstance(texts[0], tuple)
    given = ([text for text, _ in texts], [other for _, other in texts]) if pairs else (texts,)
    inputs = dict(tokenizer(*given, padding=True, truncation=True, return_tensors="np"))
    assert set(inputs) == {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs | more), strict=True))


def test_a_folder_that_a_user_can_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    result = thresher.export(run, out=str(out))
    assert result.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert result.outputs == ("logits",) and result.file == out / "onnx" / "model.onnx"
    there = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert there == {
        *("onnx/model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "thresher_export.json"),
    }
    assert result.bytes == (out / "onnx" / "model.onnx").stat().st_size
    engine = Engine.load(run, device="cpu", backend="reference", dtype="fp32")
    long = [*TEXTS, "the river " * 20]
    expected = engine.executor.compute(_tokens(out, long))
    np.testing.assert_allclose(read(out, long)["logits"], expected.outputs.numpy(), atol=1e-5, rtol=1e-5)
    assert [path.name for path in out.parent.iterdir()] == ["out"], "nothing temporary stays"


def _tokens(out: Path, texts: list[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.model_max_length == 16, "as long as in training"
    return [list(ids) for ids in tokenizer(texts, truncation=True)["input_ids"]]


def test_it_says_what_it_is_and_names_no_place(run: Path, tmp_path: Path) -> None:
    result = thresher.export(run, out=tmp_path / "out", kept=True)
    about = json.loads((tmp_path / "out" / "thresher_export.json").read_text())
    assert about["thresholds"] == pytest.approx([0.7, 0.8, 0.9, 1.0])
    assert about["options"]["kept"] and not about["options"]["dense"]
    assert about["check"]["texts"] == result.checked.texts and about["check"]["tolerance"] == 1e-5
    assert {"onnx", "onnxruntime", "torch"} <= set(about["provenance"]["versions"])
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert str(tmp_path).encode() not in file.read_bytes() and str(run).encode() not in file.read_bytes()
    assert result.to_dict()["checked"]["texts"] == result.checked.texts


def test_every_option(run: Path, tmp_path: Path) -> None:
    plain = read(thresher.export(run, out=tmp_path / "plain", kept=True).out, TEXTS)
    dense = read(thresher.export(run, out=tmp_path / "dense", kept=True, dense=True).out, TEXTS)
    assert (dense["kept"] >= plain["kept"]).all() and dense["kept"].sum() > plain["kept"].sum()
    out = thresher.export(run, out=tmp_path / "dial", kept=True, dial=True).out
    for dial, expected in ((0.0, dense), (1.0, plain)):
        found = read(out, TEXTS, dial=np.array(dial, np.float32))
        np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
        assert found["kept"].tolist() == expected["kept"].tolist()
    single = thresher.export(run, out=tmp_path / "one", batch_one=True).out
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(read(single, [text])["logits"][0], plain["logits"][row], atol=1e-5)
    small = thresher.export(run, out=tmp_path / "small", fp16_weights=True)
    assert small.bytes < 0.75 * (tmp_path / "plain" / "onnx" / "model.onnx").stat().st_size
    np.testing.assert_allclose(read(small.out, TEXTS)["logits"], dense["logits"], atol=10)


def test_a_reranker_reads_pairs(tmp_path: Path) -> None:
    model = tiny_model("bert", num_labels=1).float()
    set_head_(model, Head(means="score"))
    prune_(model, PruneConfig(protect=("first", "first_segment"), separator_id=3))
    gates_of(model).set_thresholds([0.7, 0.8, 0.9, float("inf")])
    run = saved(tmp_path / "run", model)
    out = thresher.export(run, out=tmp_path / "out").out
    engine = Engine.load(run, device="cpu", backend="reference", dtype="fp32")
    scores = np.asarray(engine.score(PAIRS))
    np.testing.assert_allclose(1 / (1 + np.exp(-read(out, PAIRS)["logits"][:, 0])), scores, atol=1e-5)


def test_an_embedder_keeps_what_sentence_transformers_reads(tmp_path: Path) -> None:
    model = gated("bert", reads="mean").float()
    run = saved(tmp_path / "run", model)
    out = thresher.export(run, out=tmp_path / "out").out
    assert {"modules.json", "1_Pooling", "2_Normalize"} <= {path.name for path in out.iterdir()}
    embeddings = Engine.load(run, device="cpu", backend="reference", dtype="fp32").embed(TEXTS)
    found = read(out, TEXTS)
    np.testing.assert_allclose(found["sentence_embedding"], embeddings, atol=1e-5)
    assert found["last_hidden_state"].shape[2] == 32


def test_a_graph_has_the_inputs_that_its_tokenizer_gives(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", gated("bert").float(), types=False)
    assert thresher.export(run, out=tmp_path / "out").inputs == ("input_ids", "attention_mask")


def test_a_graph_that_differs_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = module.build_model

    def other(weights: Any, plan: Any, **more: Any) -> Any:
        return build(weights, plan.with_thresholds([value * 0.5 for value in plan.thresholds]), **more)

    monkeypatch.setattr(module, "build_model", other)
    with pytest.raises(ModelError, match="is not the engine's model: kept counts are"):
        thresher.export(run, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_refused_before_any_work(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load", lambda *given: pytest.fail("work was begun"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunError, match="exists and is not empty; choose another --out"):
        thresher.export(run, out=tmp_path / "full")
    for out in (run, run / "onnx", run.parent):
        with pytest.raises(RunError, match="lie in one another; the exported model needs a folder of its own"):
            thresher.export(run, out=out)
    with pytest.raises(ConfigError, match="--dense drops nothing, and --dial scales what is dropped"):
        ExportRequest(run=run, out=tmp_path / "out", dense=True, dial=True)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.fixture(scope="module")
def quantized(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with scales."""
    from thresher.engine.backends.linear import check_int8
    from thresher.engine.find_scales import find_scales
    from thresher.engine.scales import write_scales
    from thresher.models.checkpoint import load

    try:
        check_int8()
    except ConfigError as why:
        pytest.skip(str(why))
    folder = tmp_path_factory.mktemp("quantized") / "run"
    shutil.copytree(run, folder)
    checkpoint = load(folder)
    rows = [(list(checkpoint.tokenizer(text)["input_ids"]), None) for text in TEXTS * 4]
    write_scales(folder, find_scales(checkpoint.model, rows))
    return folder


def lines(folder: Path) -> Path:
    """A file of texts without labels."""
    file = folder / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return file


def test_int8_is_measured_beside_the_engine(quantized: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = thresher.export(quantized, out=out, int8=True, texts=lines(tmp_path), kept=True)
    assert result.file == out / "onnx" / "model_quantized.onnx"
    told = json.loads((out / "thresher_export.json").read_text())["quality"]
    assert result.quality is not None and told == result.quality.to_dict()
    assert set(told) >= {"fp32", "int8-static", "exported", "split", "rows"} and told["rows"] == len(TEXTS)
    assert told["agreement_with_the_engine"] >= 0.99 and told["kept_alone_as_in_a_batch"] == 1.0
    assert told["fp32"]["agreement"] == 1.0


def test_a_file_that_disagrees_with_the_engine_is_not_kept(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thresher.jobs import export_quality

    monkeypatch.setattr(export_quality, "LEAST", 1.01)
    with pytest.raises(ModelError, match=r"agrees with the engine in int8-static by .*, and 1.01 is the least"):
        thresher.export(quantized, out=tmp_path / "out", int8=True, texts=lines(tmp_path))
    assert not (tmp_path / "out").exists()


def test_int8_needs_a_quantized_run(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no int8 scales; make a run that has: thresher quantize"):
        thresher.export(run, out=tmp_path / "out", int8=True)


@pytest.mark.parametrize("int8", [False, True])
def test_openvino_has_the_same_model(run: Path, quantized: Path, tmp_path: Path, int8: bool) -> None:
    openvino = pytest.importorskip("openvino")
    out, rows = tmp_path / "out", {"texts": lines(tmp_path)} if int8 else {}
    result = thresher.export(quantized if int8 else run, out=out, format="openvino", int8=int8, **rows)
    assert result.file == out / "openvino_model.xml" and (out / "openvino_model.bin").is_file()
    assert not (out / "onnx").exists() and not list(out.glob("*.onnx")) and not list(out.glob("counting*"))
    assert [value.get_any_name() for value in openvino.Core().read_model(result.file).outputs] == ["logits"]


def test_single_texts_have_rows_in_steps_in_openvino_alone(run: Path, tmp_path: Path) -> None:
    """Where every token's state is read, and in onnxruntime, whose kernels do not ask for shapes, there are none."""
    from thresher.core.plan import PruningPlan
    from thresher.engine.graphs.build import Form
    from thresher.exporting.folder import STEP, form_for

    pytest.importorskip("openvino")
    plan = PruningPlan(thresholds=(0.5, 0.5))
    for runtime, form, reads, step in (
        ("openvino", Form(one=True), "first", STEP),
        ("openvino", Form(), "first", 1),
        ("openvino", Form(one=True, passed=True), "first", 1),
        ("openvino", Form(one=True), "mean", 1),
        ("onnx", Form(one=True), "first", 1),
    ):
        assert form_for(runtime, form, replace(plan, reads=reads)).step == step
    assert form_for("openvino", Form(one=True), PruningPlan.dense(2)).step == 1
    result = thresher.export(run, out=tmp_path / "out", format="openvino", batch_one=True)
    assert 'type="Pad"' in result.file.read_text() and result.checked.texts == 11


def test_what_does_not_go_together(run: Path, tmp_path: Path) -> None:
    for given, rule in (
        ({"format": "tflite"}, "format = 'tflite' is not one of: onnx, openvino"),
        ({"format": "openvino", "dial": True}, "leave out --dial, or --format"),
        ({"texts": "a.txt", "task": "sst2"}, "--texts a.txt stands alone"),
    ):
        with pytest.raises(ConfigError, match=rule):
            ExportRequest(run=run, out=tmp_path / "out", **given)
