"""Questions and tags from text to answer, on tiny models: all answer alike, and the table is drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_answers import character_tokenizer, model_for
from tests.training.test_tokens import task
from thresher.config import PruneConfig
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import save


@pytest.fixture
def script() -> Any:
    import of_tokens  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    return of_tokens


@pytest.fixture(params=["span", "tags"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    model = model_for(request.param)
    prune_(model, PruneConfig(collapse_last=False))
    gates_of(model).set_thresholds([1.0, 1.0])
    save(model, character_tokenizer(), tmp_path / "run")
    return request.param, tmp_path / "run"


def test_every_engine_is_measured_and_drawn(
    script: Any, saved: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means, run = saved
    monkeypatch.setattr(script, "load_task", lambda name, data: task(means, 32))
    page, out = tmp_path / "page.md", tmp_path / "rows.jsonl"
    page.write_text("<!-- of_tokens -->\n<!-- end -->\n", encoding="utf-8")
    script.main([str(run), "--rows", "6", "--rounds", "2", "--out", str(out), "--page", str(page)])
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    found = {(row["engine"], row["dtype"]): row for row in rows}
    assert {("transformers", "fp32"), ("dense", "fp32"), ("pruned", "fp32")} <= set(found)
    assert found["pruned", "fp32"]["engine_relative_flops"] < 1 == found["dense", "fp32"]["engine_relative_flops"]
    assert all(len(row["rounds"]) == 2 and row["texts"] == 6 and row["texts_per_s"] > 0 for row in rows)
    said = page.read_text(encoding="utf-8")
    assert "**thresher, pruned**, fp32" in said and said.count("%") <= len(rows) // 3
    script.main(["--out", str(out), "--page", str(page)])
    assert page.read_text(encoding="utf-8") == said


def test_rows_are_compared_where_both_were_quiet_twice(script: Any) -> None:
    rounds = {"transformers": [1.0, 1.95, 2.0], "dense": [2.2, 14.8, 7.9], "pruned": [5.5, 32.5, 32.4]}
    about = {"task": "t", "texts": 1, "windows": 1, "tokens": 9.0, "dtype": "bf16", "engine_relative_flops": 0.5}
    rows = [{**about, "engine": engine, "rounds": found} for engine, found in rounds.items()]
    said = script.table(rows)
    assert "| **thresher, pruned**, bf16 | 32.50 | 16.25x |  |  |" in said, "no ratio to one quiet round of dense"
    assert "| thresher, dense, bf16 | 14.80 |  |  |  |" in said
    rows[1]["rounds"] = [2.2, 14.8, 14.7]
    assert "| 16.25x | 2.20x | 110% |" in script.table(
        rows
    ) and "| thresher, dense, bf16 | 14.80 | 7.40x |" in script.table(rows)
    assert not script.settled({"rounds": [3.0]})


def test_the_rival_gives_our_dense_answers(script: Any, saved: tuple[str, Path]) -> None:
    """Sorted, padded and put back: the same windows, and the same code that reads them."""
    from thresher.engine.engine import Engine
    from thresher.evaluation.contenders import load_ours

    means, run = saved
    engine = Engine.from_model(*load_ours("thresher dense", run), device="cpu", dtype="fp32")
    words = [["a", "fox", "and", "a", "dog"] * 20, ["it"], ["who", "is", "there"]]
    items: list[Any] = [("who ?", " ".join(text)) for text in words] if means == "span" else words
    ours = script.answers_of(engine)(items)
    theirs = script.Stock(engine, run, dtype="fp32", batch_size=2)(items)
    for one, other in zip(ours, theirs, strict=True):
        if means == "span":
            assert (one.text, one.start, one.windows) == (other.text, other.start, other.windows)
            assert one.score == pytest.approx(other.score, abs=1e-3)
        else:
            assert one.tags == other.tags and [e.text for e in one.entities] == [e.text for e in other.entities]
