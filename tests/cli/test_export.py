"""thresher export: what it says, and one clear line for what it refuses."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock

EXPORT = "export {run} --out {out}"


def test_a_file_is_written_and_described(finished: Path, tmp_path: Path) -> None:
    done = tiny.succeeds(f"{EXPORT} --kept --json", run=finished, out=tmp_path / "out")
    found = done.json()
    assert found["outputs"] == ["logits", "kept"] and found["checked"]["at_a_threshold"] <= 1
    assert (tmp_path / "out" / "onnx" / "model.onnx").stat().st_size == found["bytes"]
    assert "-> logits, kept; " in done.err and "checked on 11 texts in" in done.err and "saved " in done.err


@pytest.mark.parametrize("option", ["--batch-one", "--dense", "--dial", "--fp16-weights"])
def test_every_option(finished: Path, tmp_path: Path, option: str) -> None:
    assert "saved" in tiny.succeeds(f"{EXPORT} {option}", run=finished, out=tmp_path / "out").out


def refused(words: str, *, code: int = 1, **places: Any) -> str:
    done = tiny.thresher(words, **places)
    assert done.code == code and done.out == ""
    (line,) = done.err.splitlines()
    return line


def test_what_is_no_run(stock: Stock, tmp_path: Path) -> None:
    said = refused(EXPORT, run=stock.head, out=tmp_path / "out")
    assert said.endswith("is not a thresher run: it has no thresher.json; make one with: thresher prune")
    assert "is not a thresher run" in refused(EXPORT, run=tmp_path / "nothing", out=tmp_path / "out")
    assert tiny.tree(tmp_path) == set()


def test_a_folder_that_exists(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    said = refused(EXPORT, run=finished, out=tmp_path / "out")
    assert said == f"error: {tmp_path / 'out'} exists and is not empty; choose another --out"
    assert tiny.tree(tmp_path) == {"out", "out/mine.txt"}


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "thresher.engine.graphs.opened.find_spec", lambda name: None if name == package else there(name)
    )
    said = refused(EXPORT, code=2, run=finished, out=tmp_path / "out")
    rule = "is not installed, and export needs it; pip install 'thresher[export]'"
    assert said == f"error: the package {package} {rule}"
    assert tiny.tree(tmp_path) == set()


def test_options_that_contradict_each_other(finished: Path, tmp_path: Path) -> None:
    said = refused(f"{EXPORT} --dense --dial", code=2, run=finished, out=tmp_path / "out")
    assert said == "error: --dense drops nothing, and --dial scales what is dropped; give one of them"


def test_help_has_an_example() -> None:
    said = " ".join(tiny.succeeds("export --help").out.split())
    assert "Example: thresher export" in said and "--json" in said and "--fp16-weights" in said
    assert "export" in tiny.succeeds("--help").out
