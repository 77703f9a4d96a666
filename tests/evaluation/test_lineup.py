"""Who takes part: names, order, and every absence with its reason. Memory: alone, and without what is not needed."""

import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import thresher
from tests.cli import tiny
from thresher.config import PruneConfig
from thresher.engine.find_scales import find_scales
from thresher.engine.scales import SCALES, load_scales, write_scales
from thresher.errors import ConfigError
from thresher.evaluation import lineup
from thresher.evaluation.alone import heaviest, peak_memory
from thresher.evaluation.contenders import Spec, Tokens, build, load_ours
from thresher.evaluation.lineup import Group, Material, dense_of, line_up, parse_engines, rows_of
from thresher.evaluation.verdict import judge
from thresher.models.checkpoint import load, load_dense

LONG = [Tokens([2, *range(5, 5 + words), 3], [0] * (words + 2)) for words in (12, 3, 7)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("lineup") / "dense", tiny.classifier_config())


@pytest.fixture(scope="module")
def pruned(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made from the dense model, with thresholds that drop some tokens."""
    folder = tmp_path_factory.mktemp("lineup") / "run"
    model, tokenizer = load_dense(dense, whole=True)
    thresher.prune_(model)
    thresher.gates_of(model).set_thresholds([0.9, 0.9, 0.9, 0.9])
    thresher.save(model, tokenizer, folder)
    return folder


def material(dense: Path, work: Path) -> Material:
    rows = [Tokens([2, 5, 6, 3], [0] * 4), Tokens([2, 5, 3], [0] * 3)]
    return Material(run=dense, dense=dense, work=work, calibration=rows, pad_id=0, threads=1, texts=rows, batch_size=2)


def spec(engine: str) -> Spec:
    return Spec(engine, "fp32", Path("nowhere"), pad_id=0, threads=1)


def test_engines_are_parsed_and_a_bad_name_is_one_clear_error() -> None:
    assert parse_engines(None) == ("hf", "onnxruntime", "openvino", "thresher", "export")
    assert parse_engines("thresher, openvino") == ("openvino", "thresher")
    for bad in ("tensorrt", "thresher,", ""):
        with pytest.raises(ConfigError, match="is not one of: hf, onnxruntime, openvino, thresher"):
            parse_engines(bad)


def test_the_yardstick_always_comes_first() -> None:
    assert rows_of(["thresher"])[0] == Group(("hugging face",), "fp32")
    assert rows_of(["hf", "thresher"])[0] == Group(("hugging face", "hugging face, sorted"), "fp32")
    assert [group.dtype for group in rows_of(["thresher"])] == ["fp32", "fp32", "bf16", "int8", "int8-static"]


def test_what_cannot_run_is_missing_by_name(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineup, "missing_package", lambda engine, dtype: "openvino")
    monkeypatch.setattr(lineup, "native_bf16_on_cpu", lambda: False)
    contenders, missing = line_up(["hf", "openvino"], material(dense, tmp_path))
    assert [c.spec.engine for c in contenders] == ["hugging face", "hugging face, sorted"]
    why = {(row.engine, row.dtype): row.why for row in missing}
    assert "openvino is not installed" in why[("openvino, sorted", "int8")]
    assert "no native bfloat16" in why[("hugging face", "bf16")]
    assert "no native bfloat16" in why[("openvino", "bf16")]
    assert len(missing) == 8


def test_a_failed_export_is_a_missing_row(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("no such operator\nsecond line")

    monkeypatch.setattr(lineup, "missing_package", lambda engine, dtype: None)
    monkeypatch.setattr(lineup, "alone", fails)
    _, missing = line_up(["onnxruntime"], material(dense, tmp_path))
    assert {row.why for row in missing} == {"RuntimeError: no such operator second line"}
    assert [row.engine for row in missing] == ["onnxruntime", "onnxruntime, sorted"] * 2


def test_what_would_be_converted_too_late_is_missing(
    dense: Path, pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our engine and the yardstick always take part; the rows that are there keep the table's order."""
    monkeypatch.setattr(lineup, "missing_package", lambda engine, dtype: None)
    monkeypatch.setattr(lineup, "find_spec", lambda name: True)
    engines = ("hf", "onnxruntime", "thresher", "export")
    contenders, missing = line_up(engines, replace(material(dense, tmp_path), run=pruned), late=lambda: True)
    found = [each.spec.engine for each in contenders]
    assert found[0] == "hugging face" and found[-1] == "thresher pruned" and "hugging face, sorted" in found
    late = [row.engine for row in missing if row.why == lineup.NO_TIME]
    assert late[:2] == ["onnxruntime", "onnxruntime, sorted"] and late[-1] == "thresher pruned, onnx backend"
    assert len(late) == 4 + 12, late


def test_exported_graphs_answer_as_our_engine_does(
    dense: Path, pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned and dense, single texts and batches, in both runtimes; of which those that are missing say why."""
    monkeypatch.setattr(lineup, "alone", lambda make, *given: make(*given))  # eight processes would say the same
    given = replace(material(dense, tmp_path), run=pruned)
    contenders, missing = line_up(["thresher", "export"], given)
    assert all(row.why for row in missing)
    found = {(each.spec.engine, each.spec.dtype): each for each in contenders}
    rows = [name for name, _ in found if name.startswith("thresher export")]
    assert {"thresher export dense, onnxruntime", "thresher export pruned, onnxruntime"} <= set(rows)
    for kind in ("dense", "pruned"):
        ours = found[f"thresher {kind}", "fp32"]
        for name in (f"thresher export {kind}, onnxruntime", f"thresher {kind}, onnx backend"):
            exported = found[name, "fp32"]
            assert (ours.alone, ours.counts_last) == (exported.alone, exported.counts_last)
            for texts in (given.texts[:4], given.texts[:1]):
                (logits, kept), (others, passed) = ours.run(texts), exported.run(texts)
                np.testing.assert_allclose(logits, others, atol=1e-4, rtol=1e-4)
                assert kept is not None and passed is not None and kept.tolist() == passed.tolist()


def test_rivals_have_the_weights_that_pruning_started_from(dense: Path, pruned: Path, tmp_path: Path) -> None:
    checkpoint = load(pruned)
    checkpoint.manifest["base_model"] = str(dense)
    found = dense_of(pruned, checkpoint)
    assert (found.folder, found.name) == (dense.resolve(), "the base model dense")
    run = tmp_path / "run"
    shutil.copytree(dense, run / "dense")
    found = dense_of(run, checkpoint)
    assert (found.folder, found.name) == (run / "dense", "the dense model fine-tuned with the run (dense/)")


def test_rivals_have_the_run_s_own_weights_where_those_are_not_to_be_had(pruned: Path, tmp_path: Path) -> None:
    checkpoint = load(pruned)
    others = {
        "head": tiny.save_model(tmp_path / "head", tiny.classifier_config(("a", "b", "c"))),
        "none": tiny.save_model(tmp_path / "none", tiny.config(), head=False),
        "smaller": tiny.save_model(tmp_path / "smaller", tiny.classifier_config(num_hidden_layers=2)),
        "no model": tmp_path,
        "gone": tmp_path / "gone",
        "hub": "some/name",
        "itself": pruned,  # written anew over the model that it started from
        "unknown": None,
    }
    for why, base in others.items():
        checkpoint.manifest["base_model"] = base if base is None else str(base)
        found = dense_of(pruned, checkpoint)
        assert (found.folder, found.name) == (pruned, "this run's own weights, unpruned"), why


def test_static_int8_is_calibrated_for_each_of_our_rows(dense: Path, pruned: Path, tmp_path: Path) -> None:
    """The dense row on the dense model, the pruned row on the pruned one, from the same texts."""
    given = replace(material(dense, tmp_path), run=pruned)
    contenders, missing = line_up(["thresher"], given)
    static = {found.spec.engine: found for found in contenders if found.spec.dtype == "int8-static"}
    assert not missing and list(static) == ["thresher dense", "thresher pruned"]
    files = [found.spec.scales for found in static.values()]
    assert files == [tmp_path / "thresher dense" / SCALES, tmp_path / "thresher pruned" / SCALES]
    texts = [(row.input_ids, row.token_type_ids) for row in given.calibration]
    for name, folder in (("thresher dense", dense), ("thresher pruned", pruned)):
        expected = find_scales(load_ours(name, folder)[0], texts)
        found = load_scales(tmp_path / name / SCALES)
        assert [float(layer.ffn_out) for layer in found] == [float(layer.ffn_out) for layer in expected]
    kept = {name: found.run(LONG)[1] for name, found in static.items()}
    assert kept["thresher pruned"].sum() < kept["thresher dense"].sum()
    assert all(found.spec.scales is None for found in contenders if found.spec.dtype != "int8-static")


def test_a_quantized_run_keeps_its_own_scales(dense: Path, pruned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(pruned, run)
    write_scales(run, find_scales(load_ours("thresher pruned", run)[0], [(LONG[0].input_ids, None)]))
    (tmp_path / "work").mkdir()
    contenders, _ = line_up(["thresher"], replace(material(dense, tmp_path / "work"), run=run))
    scales = {found.spec.engine: found.spec.scales for found in contenders if found.spec.dtype == "int8-static"}
    assert scales["thresher pruned"] == run / SCALES
    assert scales["thresher dense"] == tmp_path / "work" / "thresher dense" / SCALES


@pytest.mark.parametrize(("last", "counts"), [(math.inf, True), (0.9, False), (-math.inf, False)])
def test_the_last_count_holds_where_only_first_tokens_are_left(
    pruned: Path, tmp_path: Path, last: float, counts: bool
) -> None:
    checkpoint = load(pruned)
    thresher.gates_of(checkpoint.model).set_thresholds([0.9, 0.9, 0.9, last])
    thresher.save(checkpoint.model, checkpoint.tokenizer, tmp_path / "run")
    found = build(Spec("thresher pruned", "fp32", tmp_path / "run", pad_id=0, threads=1))
    assert found.counts_last == counts


def test_static_int8_runs_in_a_process_of_its_own(dense: Path, pruned: Path, tmp_path: Path) -> None:
    contenders, _ = line_up(["thresher"], replace(material(dense, tmp_path), run=pruned))
    assert contenders[-1].spec.dtype == "int8-static"
    assert 50 < peak_memory(contenders[-1].spec, LONG, 2).peak_mib < 4000


def test_where_int8_is_not_exact_our_int8_rows_are_missing(
    dense: Path, pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ConfigError("int8 products saturate")

    monkeypatch.setattr("thresher.engine.backends.linear.check_int8", refuse)
    monkeypatch.setattr("thresher.engine.backends.cpu.check_int8", refuse)
    contenders, missing = line_up(["thresher"], replace(material(dense, tmp_path), run=pruned))
    assert {row.dtype for row in missing} == {"int8", "int8-static"} and len(missing) == 4
    assert all("int8 products saturate" in row.why for row in missing)
    assert {found.spec.dtype for found in contenders} <= {"fp32", "bf16"}


def test_the_verdict_sets_static_int8_against_the_int8_rivals() -> None:
    common = {"mode": None, "quality": 0.9, "relative_flops": 0.5, "engine_relative_flops": 0.5, "latency_ms_p50": 1.0}
    rates = {
        ("openvino", "int8"): 50.0,
        ("thresher dense", "int8"): 80.0,
        ("thresher pruned", "int8"): 120.0,
        ("thresher dense", "int8-static"): 100.0,
        ("thresher pruned", "int8-static"): 150.0,
    }
    verdict = judge([{"engine": e, "dtype": d, "texts_per_s": rate, **common} for (e, d), rate in rates.items()])
    assert verdict is not None and verdict.dtype == "int8-static"
    assert verdict.speedup == 1.5
    assert verdict.int8_unsorted is not None and verdict.int8_unsorted.speedup == 3.0


@pytest.mark.parametrize("protect", [("first",), ("first", "separators")])
def test_the_last_count_holds_where_first_tokens_alone_are_kept(
    dense: Path, tmp_path: Path, protect: tuple[str, ...]
) -> None:
    model, tokenizer = load_dense(dense, whole=True)
    thresher.prune_(model, PruneConfig(protect=protect, separator_id=3))
    thresher.gates_of(model).set_thresholds([0.0, 0.0, 0.0, math.inf])
    thresher.save(model, tokenizer, tmp_path)
    found = build(Spec("thresher pruned", "fp32", tmp_path, pad_id=0, threads=1))
    assert found.counts_last == (protect == ("first",))


def test_sorted_rows_get_their_texts_by_length() -> None:
    rows = [Tokens([0] * length, None) for length in (5, 1, 4, 2)]
    lengths = [[len(row.input_ids) for row in batch] for batch in spec("openvino, sorted").batches(rows, 2)]
    assert lengths == [[1, 2], [4, 5]]
    assert spec("openvino").order(rows) == [0, 1, 2, 3]


def test_heaviest_batches_are_the_longest_and_the_fullest() -> None:
    rows = [Tokens([0] * length, None) for length in (1, 9, 6, 6, 2, 2, 8, 1, 7, 4)]
    chosen = [[len(row.input_ids) for row in batch] for batch in heaviest(spec("openvino"), rows, 2)]
    assert chosen == [[1, 9], [8, 1], [6, 6], [7, 4]]


def test_peak_memory_is_of_a_process_alone(dense: Path) -> None:
    found = peak_memory(Spec("hugging face", "fp32", dense, pad_id=0, threads=1), [Tokens([2, 5, 3], [0] * 3)], 2)
    assert 50 < found.peak_mib < 4000 and found.peak_reserved_mib is None


def test_a_process_for_rivals_has_no_torch_in_it() -> None:
    code = "import sys, thresher.evaluation.alone; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
