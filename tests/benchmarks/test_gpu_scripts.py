"""Scripts of benchmarks/gpu on tiny shapes without a GPU: kernels in Triton's interpreter, and every row in its place.

Numbers mean nothing here; what a script asks of the package is there, and it ends with the records that it promises.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thresher.engine.engine import Engine

CHECKOUT = Path(__file__).parents[2]
PARTS = ["plain", "scored", "scored by one query in 8"]  # of attention with distances
pytest.importorskip("triton")
START = """
import runpy, sys
from pathlib import Path
from tests.interpreting import replace_language_once_

replace_language_once_()
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def records(tmp_path: Path, script: str, *words: str, directly: bool = False) -> list[dict[str, Any]]:
    """In a process of its own, as it is called on a machine with a GPU; directly where it starts further ones, which
    look for its functions in its file."""
    out = tmp_path / "rows.jsonl"
    paths = os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    file = CHECKOUT / "benchmarks" / "gpu" / script
    command = [sys.executable, *([] if directly else ["-c", START]), str(file), "--out", str(out)]
    command += [] if directly else ["--device", "cpu"]
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert not [row for row in rows if "error" in row], rows
    assert str(tmp_path) not in out.read_text(encoding="utf-8"), "records do not say where they were made"
    return rows


@pytest.mark.slow
def test_long_texts(tmp_path: Path) -> None:
    words = ["--shapes", "tiny", "--tokens", "40", "--batch", "2", "--batches", "1", "--rounds", "1"]
    rows = records(tmp_path, "long_texts.py", *words)
    names = ["hf-sdpa", "torch-unpadded", "thresher-pruned", "thresher-dense"]
    assert sorted(row["engine"] for row in rows) == sorted(names)
    pruned = next(row for row in rows if row["engine"] == "thresher-pruned")
    assert pruned["engine_relative_flops"] < 0.95 and all(row["sequences_per_s"] > 0 for row in rows)


@pytest.mark.slow
def test_distances_study(tmp_path: Path) -> None:
    """The engine's way is checked, and all that would be measured is called."""
    words = ["--tiny", "--seconds", "300", "--only", "engine"]
    rows = records(tmp_path, "distances_study.py", *words, directly=True)
    assert not [row for row in rows if "failed" in row], rows
    checked = [row for row in rows if row["part"] == "check"]
    assert [row["variant"] for row in checked] == ["engine"]
    assert all(row["error_size"] < 1e-3 for row in checked)
    assert {row["part"] for row in rows} == {"about", "check", "tables", *PARTS}


@pytest.mark.slow
def test_fp8(tmp_path: Path) -> None:
    rows = records(tmp_path, "fp8.py", "--tiny", "--rounds", "1")
    assert {row["bench"] for row in rows} >= {"exactness", "product", "engines"}
    assert {(row["engine"], row["dtype"]) for row in rows if row["bench"] == "engines"} == {
        (engine, dtype) for engine in ("thresher-dense", "thresher-pruned") for dtype in ("fp16", "fp8")
    }


@pytest.mark.slow
def test_gated_study(tmp_path: Path) -> None:
    rows = records(tmp_path, "gated_study.py", "--tiny")
    assert {(row["part"], row["rows"]) for row in rows} == {
        (part, rows) for part in ("gate", "turns", "silu") for rows in ("checked", 70)
    }
    assert all(row["error_size"] < 2e-3 for row in rows if row["rows"] == "checked")
    rows = records(tmp_path, "gated_study.py", "--tiny", "--engines")[len(rows) :]
    assert {row["way"] for row in rows} == {"passes", "gate", "turns", "both"}


def test_beside_compile_has_a_run_that_drops_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race itself takes a GPU: on a CPU it is a minute of the interpreter."""
    monkeypatch.syspath_prepend(CHECKOUT / "benchmarks" / "gpu")
    script = importlib.import_module("beside_compile")
    texts = script.long_texts(2)
    script.make_run(tmp_path / "run", texts, layers=4)
    (first, _) = Engine.load(tmp_path / "run", device="cpu").predict(texts)
    assert first.error is None and first.kept[-2] < first.tokens
