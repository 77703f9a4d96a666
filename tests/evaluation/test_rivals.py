"""The rivals compute the same function as the Hugging Face model, at shapes other than the export's example."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli import tiny
from thresher.evaluation import rivals
from thresher.evaluation.alone import alone
from thresher.evaluation.contenders import Spec, Tokens, build

PAD = 0
SHAPES = [(1,), (1, 7), (11, 1, 7, 3, 16), (32, 2), (9, 9, 9)]


def texts(*lengths: int, seed: int = 0) -> list[Tokens]:
    numbers = np.random.default_rng(seed)
    words = len(tiny.WORDS) + 4
    return [Tokens(numbers.integers(4, words, length).tolist(), [0] * length) for length in lengths]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("rivals") / "dense", tiny.classifier_config())


def skip_without(engine: str) -> None:
    package = rivals.missing_package(engine, "int8")
    if package is not None:
        pytest.skip(f"the {engine} rows need {package}, of the extra 'bench'")


def differences(dense: Path, path: Path, engine: str, dtype: str) -> list[float]:
    """Largest differences of the logits from the Hugging Face model's, one per batch of SHAPES."""
    reference = build(Spec("hugging face", "fp32", dense, pad_id=PAD, threads=1)).run
    rival = build(Spec(engine, dtype, path, pad_id=PAD, threads=1)).run
    return [float(np.abs(rival(texts(*s))[0] - reference(texts(*s))[0]).max()) for s in SHAPES]


def test_padded_is_what_the_model_expects() -> None:
    rows = [Tokens([2, 5, 3], [0, 0, 1]), Tokens([2], [1])]
    found = rivals.padded(rows, pad_id=9)
    assert found["input_ids"].tolist() == [[2, 5, 3], [2, 9, 9]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert found["token_type_ids"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert "token_type_ids" not in rivals.padded([Tokens([2], None)], pad_id=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converters warn of each other's ways
def test_onnxruntime_agrees_at_any_shape(dense: Path, tmp_path: Path) -> None:
    skip_without("onnxruntime")
    fp32, int8 = tmp_path / "fp32.onnx", tmp_path / "int8.onnx"
    rivals.make_onnx(dense, fp32, rivals.padded(texts(5, 6), PAD))
    assert max(differences(dense, fp32, "onnxruntime", "fp32")) < 1e-4
    rivals.make_onnx_int8(fp32, int8)
    assert int8.stat().st_size > 0
    assert 0 < max(differences(dense, int8, "onnxruntime", "int8")) < 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converters warn of each other's ways
def test_openvino_agrees_at_any_shape(dense: Path, tmp_path: Path) -> None:
    skip_without("openvino")
    fp32, int8 = tmp_path / "fp32.xml", tmp_path / "int8.xml"
    rivals.make_openvino(dense, fp32, rivals.padded(texts(5, 6), PAD))
    assert max(differences(dense, fp32, "openvino", "fp32")) < 1e-4
    calibration = [rivals.padded([row], PAD) for row in texts(*range(3, 15), seed=1)]
    alone(rivals.make_openvino_int8, fp32, int8, calibration)
    assert 0 < max(differences(dense, int8, "openvino", "int8")) < 3


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: None if name == "nncf" else name)
    assert rivals.missing_package("openvino", "int8") == "nncf"
    assert rivals.missing_package("openvino", "bf16") is None
