"""thresher prune --method: every rival gives a run that eval and explain open; the engine says what it cannot run."""

from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.config import METHODS

PRUNE = (
    "prune {model} --train {rows} --out {out} --method {method} --max-steps 2 --batch-size 8 --target-flops {target} "
    "--precision fp32 --device cpu --config {settings}"
)


def pruned(method: str, stock: Stock, folder: Path) -> Path:
    settings = folder / "settings.toml"
    settings.write_text("[train]\nsearch_rounds = 1\nevals_per_stage = 1\n", encoding="utf-8")
    places = {"model": stock.head, "rows": stock.rows, "out": folder / "run", "settings": settings}
    # SpAtten's schedule leaves three of the four layers alone.
    target = 0.93 if method in ("spatten", "random") else 0.6
    tiny.succeeds(PRUNE, method=method, target=target, **places)
    return folder / "run"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_whole_run(method: str, stock: Stock, tmp_path: Path) -> None:
    run = pruned(method, stock, tmp_path)
    manifest = tiny.manifest(run)
    assert manifest["recipe"]["method"] == method
    quality = next(iter(manifest["quality"].values()))["pruned"]
    assert (quality["relative_flops"] == 1.0) == (method == "dense")
    measured = tiny.succeeds("eval {run} --test {test} --json", run=run, test=stock.test).json()
    assert "accuracy" in str(measured)
    explained = tiny.succeeds("explain {run} 'the film is good and warm' --json", run=run).json()
    assert explained["dropped_at"][0] is None
    assert sorted(explained["kept_per_layer"], reverse=True) == explained["kept_per_layer"]


def test_the_front_of_the_search_is_saved(stock: Stock, tmp_path: Path) -> None:
    manifest = tiny.manifest(pruned("lat", stock, tmp_path))
    assert manifest["rule"]["counts"] in [row["lengths"] for row in manifest["front"]]


def test_what_only_thresholds_can_do_is_refused_in_one_line(stock: Stock, tmp_path: Path) -> None:
    run = pruned("spatten", stock, tmp_path)
    for command in ("quantize {run} --train {rows} --out {out}", "bench {run} --test {rows} --device cpu"):
        done = tiny.thresher(command, run=run, rows=stock.rows, out=tmp_path / "int8")
        assert done.code == 1
        assert done.err.splitlines()[-1].startswith(
            "error: the engine prunes by thresholds, and this model by the rule"
        )
    assert not (tmp_path / "int8").exists()
