"""Quantizing a run: a whole copy or nothing, measured through the engine, refused before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.test_engine import sequences
from tests.models.families import LAYERS, pruned_model, ragged
from tests.models.families import run as run_attached
from tests.words import word_tokenizer
from thresher.engine.engine import Engine
from thresher.engine.find_scales import find_scales
from thresher.engine.scales import SCALES, read_scales
from thresher.errors import CheckpointError, ConfigError, RunError
from thresher.evaluation.int8 import executor_in
from thresher.jobs import quantize as module
from thresher.jobs.quantize import write_quantized
from thresher.models.attach import gates_of
from thresher.models.checkpoint import load, read_manifest, save

LONG = (11, 1, 7, 3, 16, 23, 40, 9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize") / "run"
    words = word_tokenizer(tuple("abcdefgh"), model_max_length=64)
    model = pruned_model("bert").float()
    save(model, words, folder, about={"recipe": {"max_length": 64}}, dense=model.state_dict())
    return folder


def texts(count: int) -> list[tuple[list[int], list[int] | None]]:
    rows = sequences(ragged(pruned_model("bert"), (LONG * 20)[:count]))
    return [(ids, None) for ids in rows]


def made(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    checkpoint = load(run)
    settings: dict[str, Any] = {"source": "letters", "test": texts(70), "split": "test", "calibrated_on": 40}
    settings["scales"] = find_scales(checkpoint.model, texts(40))
    settings["score"] = lambda logits: {"score": float(logits.argmax(axis=1).mean())}
    return write_quantized(run, out, checkpoint, task="letters", **{**settings, **options}).block()


def test_the_copy_is_whole_and_says_what_was_measured(run: Path, tmp_path: Path) -> None:
    computed: list[int] = []
    block = made(run, tmp_path / "new" / "out", on_texts=computed.append)
    out = tmp_path / "new" / "out"
    assert sum(computed) == 4 * 70
    before, after = ({p.relative_to(f).as_posix() for p in f.rglob("*")} for f in (run, out))
    assert after == before | {SCALES}
    for name in before - {"thresher.json", "dense"}:
        assert (out / name).read_bytes() == (run / name).read_bytes()
    assert read_manifest(out) == {**read_manifest(run), "quantization": block}
    assert block["kind"] == "static symmetric int8, per-channel scales"
    assert block["calibration"] == {"rows": 40, "source": "letters"}
    quality = block["quality"]
    assert (quality["split"], quality["rows"]) == ("test", 70)
    assert quality["fp32"]["agreement"] == 1.0
    assert quality["agreement"] == quality["int8-static"]["agreement"] > 0.8
    assert set(quality["int8"]) == {"metrics", "agreement", "kept", "relative_flops", "bit_operations"}
    assert quality["fp32"]["bit_operations"] == pytest.approx(quality["fp32"]["relative_flops"])
    for dtype in ("int8-static", "fp8"):
        assert 0.25 < quality[dtype]["bit_operations"] / quality[dtype]["relative_flops"] < 1
    assert 0.8 < quality["fp8"]["agreement"]
    assert [path.name for path in out.parent.iterdir()] == ["out"], "nothing temporary stays"


def test_what_is_measured_is_what_the_engine_gives(run: Path, tmp_path: Path) -> None:
    """In the order of the rows, whatever the batches."""
    seen: list[Any] = []

    def score(logits: Any) -> dict[str, float]:
        seen.append(logits)
        return {"score": 0.0}

    block = made(run, tmp_path / "out", score=score)
    for dtype, logits in zip(("fp32", "int8", "int8-static", "fp8"), seen, strict=True):
        if dtype == "fp8":  # no engine on the CPU: its twin
            checkpoint, scales = load(tmp_path / "out"), read_scales(tmp_path / "out")
            computing = executor_in(dtype, checkpoint, scales)
        else:
            computing = Engine.load(tmp_path / "out", device="cpu", dtype=dtype).executor
        output = computing.compute([ids for ids, _ in texts(70)])
        np.testing.assert_allclose(logits, output.outputs.numpy(), atol=2e-2, rtol=2e-2)
        lengths = np.array([[len(ids)] for ids, _ in texts(70)])
        kept = float((output.kept[:, :-1].numpy() / lengths).mean())
        assert block["quality"][dtype]["kept"] == pytest.approx(kept, abs=1e-6)
    assert 0 < block["quality"]["fp32"]["kept"] < 1


def test_the_engine_takes_int8_for_a_quantized_run_where_it_is_fastest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(run, tmp_path / "out")
    sets = {"avx512_bf16": True, "avx512_vnni": True}
    monkeypatch.setattr("thresher.engine.arithmetic.features", lambda: sets)
    monkeypatch.setattr("thresher.engine.arithmetic.int8_works", lambda: True)
    assert Engine.load(tmp_path / "out", device="cpu").describe()["dtype"] == "int8-static"
    assert Engine.load(run, device="cpu").describe()["dtype"] == "bf16"
    monkeypatch.setattr("thresher.engine.arithmetic.features", lambda: {"avx512_bf16": True})
    engine = Engine.load(tmp_path / "out", device="cpu")
    assert engine.describe()["dtype"] == "bf16"
    assert "quantized, but int8 is not known to be faster here" in engine.describe()["why"]


def saturating() -> None:
    raise ConfigError("this processor's int8 products saturate; use fp32 or bf16")


def test_a_processor_without_int8_measures_fp8_and_says_what_it_did_not(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside many GPUs. Nothing takes int8 for such a run, whose loss nobody knows, but fp8 is as good as any."""
    monkeypatch.setattr("thresher.evaluation.int8.check_int8", saturating)
    out, computed = tmp_path / "out", list[int]()
    block = made(run, out, on_texts=computed.append)
    assert sum(computed) == 2 * 70
    assert block["not_measured"] == dict.fromkeys(("int8", "int8-static"), "this processor's int8 products saturate")
    quality = block["quality"]
    assert {name for name in quality if isinstance(quality[name], dict)} == {"fp32", "fp8"}
    assert quality["agreement"] == quality["fp8"]["agreement"]
    assert len(read_scales(out, "fp8")) == LAYERS and read_scales(out) == []
    with pytest.raises(ConfigError, match="quantized on a processor without int8, so nobody knows what it loses"):
        read_scales(out, "int8-static")
    monkeypatch.setattr("thresher.engine.arithmetic.features", lambda: {"avx512_bf16": True, "avx512_vnni": True})
    assert Engine.load(out, device="cpu").describe()["dtype"] == "bf16"
    monkeypatch.undo()
    assert "not_measured" not in made(run, out, overwrite=True)


def test_failure_leaves_what_was_there(run: Path, tmp_path: Path) -> None:
    made(run, tmp_path / "out")

    def fails(logits: Any) -> dict[str, float]:
        raise KeyboardInterrupt

    for out in ("out", "other"):
        with pytest.raises(KeyboardInterrupt):
            made(run, tmp_path / out, overwrite=True, score=fails)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(read_scales(tmp_path / "out")) == LAYERS
    made(run, tmp_path / "out", overwrite=True, source="again")
    assert read_manifest(tmp_path / "out")["quantization"]["calibration"]["source"] == "again"


def test_a_full_disk_is_one_clear_error(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    says = "cannot write .*/out: No space left on device; free some space, or choose another folder"
    with pytest.raises(CheckpointError, match=says):
        made(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


Case = Callable[[Path, Path, pytest.MonkeyPatch], tuple[Path, Path]]
REFUSED: dict[str, tuple[Case, type[Exception], str]] = {
    "no run": (lambda run, tmp, patch: (tmp, tmp / "out"), CheckpointError, "not a thresher run"),
    "onto itself": (lambda run, tmp, patch: (run, run), RunError, "lie in one another"),
    "inside itself": (lambda run, tmp, patch: (run, run / "int8"), RunError, "lie in one another"),
    "around itself": (lambda run, tmp, patch: (run, run.parent), RunError, "lie in one another"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_work(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    prepare, error, says = REFUSED[case]
    source, out = prepare(run, tmp_path, monkeypatch)
    checkpoint = load(run)
    monkeypatch.setattr(module, "measure_arithmetics", lambda *args, **options: pytest.fail("work was begun"))
    before = sorted(run.rglob("*"))
    with pytest.raises(error, match=says):
        nothing: dict[str, Any] = {"task": "", "source": "", "test": [], "split": "", "score": dict}
        write_quantized(source, out, checkpoint, scales=[], calibrated_on=0, **nothing, overwrite=True)
    assert sorted(run.rglob("*")) == before and list(tmp_path.iterdir()) == []


def test_steps_come_from_the_pruned_model(run: Path) -> None:
    checkpoint = load(run)
    pruned = find_scales(checkpoint.model, texts(8))
    gates_of(checkpoint.model).set_mode("off")
    dense = find_scales(checkpoint.model, texts(8))
    assert len(pruned) == len(dense) == LAYERS
    assert float(pruned[-2].ffn_out) != float(dense[-2].ffn_out)


def test_a_run_scored_by_value_stays_one(tmp_path: Path) -> None:
    """Calibrated on, measured on and loaded with the tokens that its own score keeps."""
    tokenizer = word_tokenizer(tuple("abcdefgh"), model_max_length=64)
    models = {score: pruned_model("bert", score=score).float() for score in ("attention", "value")}
    save(models["value"], tokenizer, tmp_path / "run", about={"recipe": {"max_length": 64}})
    block = made(tmp_path / "run", tmp_path / "out")
    by_attention, by_value = (find_scales(model, texts(40)) for model in models.values())
    assert float(by_attention[1].ffn_out) != float(by_value[1].ffn_out)
    assert [float(layer.ffn_out) for layer in read_scales(tmp_path / "out")] == [float(s.ffn_out) for s in by_value]
    share = {}
    for score, model in models.items():
        _, trace = run_attached(model, ragged(model, (LONG * 20)[:70]))
        share[score] = float((trace.kept()[:, :-1] / trace.lengths()[:, None]).mean())
    assert abs(share["attention"] - share["value"]) > 0.01
    assert block["quality"]["fp32"]["kept"] == pytest.approx(share["value"], abs=1e-6)
    output = Engine.load(tmp_path / "out", device="cpu", dtype="int8-static").executor.compute(
        [t for t, _ in texts(70)]
    )
    lengths = np.array([[len(ids)] for ids, _ in texts(70)])
    assert float((output.kept[:, :-1].numpy() / lengths).mean()) == pytest.approx(share["value"], abs=0.01)
