"""thresher.search from Python: a run with its front, and limits that are refused before any work."""

import json
from pathlib import Path
from typing import Any

import pytest

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.jobs.listening import Listener
from thresher.errors import ConfigError

pytest.importorskip("optuna", reason="the search needs the extra: pip install 'thresher[search]'")

QUICK: dict[str, Any] = {"max_steps": 2, "batch_size": 8, "precision": "fp32", "device": "cpu"}


def test_a_search_is_a_run_with_its_front(stock: Stock, tmp_path: Path) -> None:
    out, listener = tmp_path / "run", Listener()
    result = thresher.search(
        stock.head, out=out, train=stock.rows, max_drop=0.2, max_trials=1, start_flops=0.7, progress=listener, **QUICK
    )
    manifest, front = tiny.manifest(out), json.loads((out / "pareto.json").read_text(encoding="utf-8"))
    found = result.to_dict()
    assert found == {"out": str(out), **{name: manifest[name] for name in found if name != "out"}}
    assert result.statement == front["statement"] and result.within == front["within"]
    assert front["held_out_drop"] == {split: drop.to_dict() for split, drop in result.held_out_drop.items()}
    assert result.held_out_drop["held_out"].rows == result.quality["held_out"]["dense"].rows
    assert manifest["prune"]["score"] == "value", "the method's own, resolved"
    assert (out / "pareto.svg").is_file()
    assert any(line.startswith("chosen: ") for line in listener.notes)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_drop": "70%"}, "--max-drop '70%' must be from 0% to 50%"),
        ({"max_drop": 1}, "--max-drop '1' must be from 0% to 50%"),
        ({"target_flops": 0.5}, "finds the cost itself; leave out --target-flops and --lambda"),
        ({"method": "ltp"}, "a search is for method thresher; leave the method out"),
        ({"confidence": 2.0}, "confidence = 2.0 is above 0.99"),
    ],
)
def test_what_cannot_be_searched(given: dict[str, Any], says: str, stock: Stock, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        thresher.search(stock.head, out=tmp_path / "run", train=stock.rows, **given)
    assert list(tmp_path.iterdir()) == []
