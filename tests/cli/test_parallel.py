"""Data parallelism: two processes on the CPU (gloo) learn what one process learns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli import tiny
from tests.cli.conftest import Stock

PRUNE = (
    "prune {model} --train {rows} --test {test} --out {out} --json "
    "--max-steps 4 --batch-size 8 --accumulate {parts} --target-flops 0.6 --lr 1e-3 --precision fp32 --device cpu"
)
# accelerate's --cpu starts a single process whatever the number; --multi_gpu starts all of them, and --device cpu of
# thresher lets them talk through gloo.
LAUNCH = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"


def launch(words: list[str]) -> tiny.Said:
    """`accelerate launch -m thresher ...` as a user types it, on a free port."""
    done = subprocess.run(
        (sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), "-m", "thresher", *words),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return tiny.Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the launcher would give each of the two processes a GPU")
def test_two_processes_learn_what_one_does(stock: Stock, tmp_path: Path) -> None:
    """The same batch in the same four parts, a mean over all of it, and no dropout: only rounding may differ.

    The parts must be the same because the FLOPs term is a square, taken in each part.
    """
    places = {"model": stock.bare, "rows": stock.rows, "test": stock.test}
    words = [word.format(**places, parts=2, out=tmp_path / "two") for word in PRUNE.split()]
    done = launch(words)
    assert done.code == 0, done.err[-3000:]
    assert done.json()["out"] == str(tmp_path / "two"), "one JSON line, from the first process alone"
    assert done.err.count("training in fp32 on cpu, 2 processes") == 1
    assert done.err.count("saved ") == 1

    tiny.succeeds(PRUNE, **places, parts=4, out=tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    one, two = tiny.manifest(tmp_path / "one"), tiny.manifest(tmp_path / "two")
    assert [row["stage"] for row in two["history"]] == [row["stage"] for row in one["history"]]
    torch.testing.assert_close(numbers(two["thresholds"]), numbers(one["thresholds"]), rtol=1e-3, atol=1e-4)
    for folder in (".", "dense"):
        expected, found = tiny.weights(tmp_path / "one" / folder), tiny.weights(tmp_path / "two" / folder)
        assert set(expected) == set(found)
        for name in expected:
            if name.endswith("key.bias"):
                continue  # softmax cancels it, so that its gradient is rounding and nothing else
            off = (found[name] - expected[name]).abs()
            # Where a gradient is next to nothing, its sign is rounding, and Adam's step as long as any: one weight in a
            # thousand may be a step apart.
            assert float(off.max()) < 1e-3 and float((off > 1e-4 + 1e-3 * expected[name].abs()).float().mean()) < 2e-3
    measured, alone = two["quality"]["test"], one["quality"]["test"]
    for kind in ("dense", "pruned"):
        assert measured[kind]["metrics"]["accuracy"] == pytest.approx(alone[kind]["metrics"]["accuracy"], abs=1 / 16)
    assert measured["pruned"]["relative_flops"] == pytest.approx(alone["pruned"]["relative_flops"], abs=0.01)


def numbers(values: list[float | str]) -> torch.Tensor:
    return torch.tensor([float(value) for value in values])


def test_only_the_first_process_speaks(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "prune {model} --train {rows} --out {out} --lr 0"
    places = {"model": stock.head, "rows": stock.rows, "out": tmp_path / "run"}
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert tiny.thresher(command, **places).err.startswith("error: lr = 0.0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    silent = tiny.thresher(command, **places)
    assert (silent.code, silent.out, silent.err) == (2, "", "")
