"""Who takes part: names, order, and every absence with its reason. Memory: alone, and without what is not needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import tiny
from thresher.errors import ConfigError
from thresher.evaluation import lineup
from thresher.evaluation.alone import heaviest, peak_mib
from thresher.evaluation.contenders import Spec, Tokens
from thresher.evaluation.lineup import Material, line_up, parse_engines, rows_of


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("lineup") / "dense", tiny.classifier_config())


def material(dense: Path, work: Path) -> Material:
    rows = [Tokens([2, 5, 6, 3], [0] * 4), Tokens([2, 5, 3], [0] * 3)]
    return Material(run=dense, dense=dense, work=work, calibration=rows, pad_id=0, threads=1)


def spec(engine: str) -> Spec:
    return Spec(engine, "fp32", Path("nowhere"), pad_id=0, threads=1)


def test_engines_are_parsed_and_a_bad_name_is_one_clear_error() -> None:
    assert parse_engines(None) == ("hf", "onnxruntime", "openvino", "thresher")
    assert parse_engines("thresher, openvino") == ("openvino", "thresher")
    for bad in ("tensorrt", "thresher,", ""):
        with pytest.raises(ConfigError, match="is not one of: hf, onnxruntime, openvino, thresher"):
            parse_engines(bad)


def test_the_yardstick_always_comes_first() -> None:
    assert rows_of(["thresher"])[0] == (("hugging face",), "fp32")
    assert rows_of(["hf", "thresher"])[0] == (("hugging face", "hugging face, sorted"), "fp32")
    assert len(rows_of(["thresher"])) == 4


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
    found = peak_mib(Spec("hugging face", "fp32", dense, pad_id=0, threads=1), [Tokens([2, 5, 3], [0] * 3)], 2)
    assert 50 < found < 4000


def test_a_process_for_rivals_has_no_torch_in_it() -> None:
    code = "import sys, thresher.evaluation.alone; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
