"""A whole run on a CUDA device, through the command line in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock

pytestmark = pytest.mark.gpu


def test_prune_on_the_device(stock: Stock, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["prune", str(stock.bare), "--train", str(stock.rows), "--out", str(out), "--device", "cuda"]
    quick = tiny.QUICK.replace("--precision fp32", "").replace("--device cpu", "").split()
    environment = {**os.environ, "PYTHONPATH": "src"}
    done = subprocess.run(
        [sys.executable, "-m", "thresher", *words, *quick], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "training in bf16 on cuda" in " ".join(done.stdout.split())
    manifest = json.loads((out / "thresher.json").read_text(encoding="utf-8"))
    assert "NVIDIA" in manifest["provenance"]["device"]
    assert manifest["quality"]["held_out"]["pruned"]["relative_flops"] < 1
