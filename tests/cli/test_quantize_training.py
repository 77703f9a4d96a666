"""thresher quantize --epochs: training on in int8, saved as a run that the engine opens with the same scales."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.jobs.listening import Listener
from thresher.engine.backends.linear import check_int8
from thresher.engine.engine import Engine
from thresher.engine.scales import read_scales
from thresher.errors import ConfigError, ThresherError
from thresher.jobs.quantize import QuantizeRequest, quantize
from thresher.models.checkpoint import load

TRAIN = "quantize {run} --train {rows} --out {out} --epochs 1 --device cpu"

try:
    check_int8()
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)


def test_the_trained_run_is_a_run(finished: Path, stock: Stock, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = tiny.succeeds(TRAIN + " --set lr=0.01 --json", run=finished, rows=stock.rows, out=out)
    assert "trained on (epochs: 1)" in done.err and "teacher: the base model head" in done.err
    before, after, found = tiny.manifest(finished), tiny.manifest(out), done.json()
    about = after["quantization"]["training"]
    assert found["training"] == about
    assert about["settings"]["lr"] == 0.01 and about["settings"]["max_steps"] == 2
    assert about["settings"]["hard_epochs"] == 1 and about["epochs"] == 1
    assert {row["stage"] for row in about["history"]} == {"hard"}
    same = {name for name in after if name in before and after[name] == before[name]}
    assert {"thresholds", "recipe", "task", "prune", "head"} <= same, "what was pruned stays"
    old, new = (load_file(folder / "model.safetensors") for folder in (finished, out))
    changed = {name for name in new if not new[name].equal(old[name])}
    assert new.keys() == old.keys() and any("intermediate" in name for name in changed)
    assert not any("word_embeddings" in name for name in changed)
    assert not list(tmp_path.glob("*.partial"))
    tiny.succeeds("explain {run} 'the film is good'", run=out)


def test_what_is_measured_is_the_trained_model(finished: Path, stock: Stock, tmp_path: Path) -> None:
    """In int8-static by the engine, and in floating point by what `eval` says of the folder."""
    out = tmp_path / "out"
    tiny.succeeds(TRAIN + " --set lr=0.01 --test {test}", run=finished, rows=stock.rows, test=stock.test, out=out)
    quality = tiny.manifest(out)["quality"]
    again = tiny.succeeds("eval {run} --test {test} --device cpu --json", run=out, test=stock.test).json()["splits"]
    for version in ("dense", "pruned"):
        assert quality["test"][version]["metrics"] == again["test"][version]["metrics"]
    checkpoint, scales = load(out), read_scales(out)
    rows = [line.split(",")[0] for line in stock.test.read_text(encoding="utf-8").splitlines()[1:]]
    made = Engine.from_model(checkpoint.model, checkpoint.tokenizer, backend="cpu", dtype="int8-static", scales=scales)
    opened = Engine.load(out, device="cpu", dtype="int8-static")
    assert [a.probability for a in made.predict(rows)] == [a.probability for a in opened.predict(rows)]


class Stopped(KeyboardInterrupt):
    """As a user would, in the middle of the training."""


class Stopping(Listener):
    def step(self, **numbers: float | None) -> None:
        super().step(**numbers)
        if self._stage == "hard":
            raise Stopped


def test_an_interrupted_training_goes_on(finished: Path, stock: Stock, tmp_path: Path) -> None:
    options = {"run": finished, "train": stock.rows, "epochs": 1, "device": "cpu", "settings": {"save_seconds": 0.0}}
    with pytest.raises(Stopped):
        quantize(QuantizeRequest(**options, out=tmp_path / "a"), progress=Stopping())  # type: ignore[arg-type]
    with pytest.raises(ThresherError, match="holds an interrupted run; go on with --resume"):
        quantize(QuantizeRequest(**options, out=tmp_path / "a"))  # type: ignore[arg-type]
    heard = Listener()
    quantize(QuantizeRequest(**options, out=tmp_path / "a", resume=True), progress=heard)  # type: ignore[arg-type]
    assert heard.stages["hard"] == 1 and "resuming at stage hard, step 1" in heard.notes
    quantize(QuantizeRequest(**options, out=tmp_path / "b"))  # type: ignore[arg-type]
    resumed, whole = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(resumed[name].equal(whole[name]) for name in whole)
    assert not (tmp_path / "a.partial").exists()


REFUSED = {
    "--epochs 0": "epochs = 0 must be greater than 0",
    "--set lr=0.1": "for training; say how long with --epochs",
    "--resume": "for training; say how long with --epochs",
    "--epochs 1 --resume": "nothing to resume",
    "--epochs 1 --set target_flops=0.3": "target_flops is no setting of training in int8",
    "--epochs 1 --set protect=first": "unknown setting 'protect'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_before_any_work(words: str, finished: Path, stock: Stock, tmp_path: Path) -> None:
    call = "quantize {run} --train {rows} --out {out} "
    done = tiny.thresher(call + words, run=finished, rows=stock.rows, out=tmp_path / "out")
    assert done.code in (1, 2) and REFUSED[words] in done.err
    assert tiny.tree(tmp_path) == set()


def test_texts_teach_nothing(finished: Path, stock: Stock, tmp_path: Path) -> None:
    call = "quantize {run} --texts {rows} --out {out} --epochs 1"
    done = tiny.thresher(call, run=finished, rows=stock.rows, out=tmp_path / "out")
    assert done.code == 2 and "--epochs trains on rows" in done.err


def test_a_teacher_that_is_gone(finished: Path, stock: Stock, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(finished, tmp_path / "run")
    about = {**tiny.manifest(finished), "base_model": "not-here"}
    (tmp_path / "run" / "thresher.json").write_text(json.dumps(about), encoding="utf-8")
    done = tiny.thresher(TRAIN, run=tmp_path / "run", rows=stock.rows, out=tmp_path / "out")
    assert done.code == 1
    assert "was pruned from teaches it, and not-here is not here; put it back, or quantize without" in done.err


def test_a_control_is_trained_on_in_floating_point(finished: Path, stock: Stock, tmp_path: Path) -> None:
    """As long and from the same weights, without rounding: the trained weights differ, and scales are of its own."""
    rounded, plain = tmp_path / "rounded", tmp_path / "plain"
    tiny.succeeds(TRAIN + " --set lr=0.01", run=finished, rows=stock.rows, out=rounded)
    done = tiny.succeeds(TRAIN + " --set lr=0.01 --unrounded --static-only", run=finished, rows=stock.rows, out=plain)
    assert "training on without int8" in done.out
    blocks = [tiny.manifest(out)["quantization"] for out in (rounded, plain)]
    assert [block["training"]["rounded"] for block in blocks] == [True, False]
    assert blocks[0]["training"]["settings"] == blocks[1]["training"]["settings"]
    first, second, before = (load_file(folder / "model.safetensors") for folder in (rounded, plain, finished))
    name = next(name for name in first if "intermediate" in name and "weight" in name)
    assert not second[name].equal(first[name]) and not second[name].equal(before[name])
    assert str(read_scales(plain)) != str(read_scales(rounded)), "found after training"
    measured = set(blocks[1]["quality"]) - {"split", "rows", "agreement"}
    assert measured == {"fp32", "int8-static"}, "and neither dynamic int8 nor fp8"
    with pytest.raises(ConfigError, match="--unrounded and --resume are for training; say how long with --epochs"):
        QuantizeRequest(run=finished, out=tmp_path / "no", unrounded=True)
