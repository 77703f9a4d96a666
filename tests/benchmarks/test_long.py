"""benchmarks/long.py on a tiny model: every part is a record of its own; the page is drawn from the newest of each."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import pytest

from tests.cli import tiny
from thresher.core.cost import EncoderShape
from thresher.evaluation import alone as processes

CHECKOUT = measuring.HERE.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    long = importlib.import_module("long")
    for name, value in {"MEAN": 70, "SPREAD": 9, "SHORTEST": 40, "LONGEST": 90, "BATCH": 2, "LATENCY": 1}.items():
        monkeypatch.setattr(long, name, value)
    monkeypatch.setattr(long, "COSTS", (0.6,))
    return long


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny.classifier_config(("relevance",), vocab_size=2100, max_position_embeddings=96)
    return tiny.save_model(tmp_path_factory.mktemp("long") / "model", config)


def recorded(
    script: Any, monkeypatch: pytest.MonkeyPatch, parts: str, model: Path, out: Path, *more: str
) -> list[dict[str, Any]]:
    words = ["long.py", parts, "--model", str(model), "--texts", "4", "--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), *more])
    script.main()
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def here(function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


def test_two_parts_are_two_records_and_a_page(
    script: Any, monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    queries, old = recorded(script, monkeypatch, "queries,old", model, out, "--old", str(CHECKOUT))
    assert [row.get("score_queries") for row in queries["rows"]] == [None, 1, 4, 8, 0]
    dense, *pruned = (row["engine_relative_flops"] for row in queries["rows"])
    assert dense == 1 and all(cost < 0.95 for cost in pruned)
    names = ["thresher dense", "thresher pruned, 0.6"]
    assert [(row["engine"], row["dtype"]) for row in old["rows"]] == [
        (name, dtype) for name in names for dtype in ("bf16", "int8-static")
    ]
    assert all(row["old_s"] > 0 and row["new_s"] > 0 and row["speedup"] > 0 for row in old["rows"])

    page = importlib.import_module("long_page")
    drawn = page.table({record["part"]: record for record in (queries, old)})
    assert "| one in 8 | " in drawn and "| the first | " in drawn and "| thresher pruned, 0.6, int8-static | " in drawn
    assert drawn.count("~ | ") == 5, "one round agrees with nothing"
    race = {**queries, "rows": [{**row, "path": "x"} for row in queries["rows"]]}
    race["rows"][0] |= {"engine": "hugging face", "dtype": "fp32", "engine_relative_flops": None}
    race["rows"][1] |= {"engine": "thresher dense"}
    memory = {"rows": [{"engine": "hugging face", "dtype": "fp32", "path": "x", "peak_mib": 321.4}]}
    peaks = page.table({"race": race, "memory": memory}).splitlines()
    assert peaks[2].endswith(" | 321 |")
    race["rows"][2] |= {"engine": "onnxruntime, sorted", "dtype": "int8", "texts_per_s": 10.0}
    race["rows"][1] |= {"texts_per_s": 23.0}
    memory["rows"] += [{"engine": "thresher dense", "dtype": "int8-static", "path": "x", "peak_mib": 200.0}]
    old["rows"][1] |= {"speedup": 2.04}
    said = page.table({"race": race, "memory": memory, "old": old})
    assert "| dense over onnxruntime int8, sorted | 2.4x | 2.30x (missed) |" in said
    assert "| 2x | 2.04x |" in said and "| Hugging Face's 321 MiB at most | 200 MiB |" in said
    assert said.count("share of that ratio | 88% | ") == 2
    assert peaks[2].startswith("| Hugging Face, fp32 | ") and "%" in peaks[4]


def test_shares_fall_as_trained_rerankers_prune() -> None:
    """At the same cost and lengths, layer by layer but for the last, of which first tokens alone are computed."""
    long = importlib.import_module("long")
    records = measuring.read_rows(CHECKOUT / "experiments/reranker/records.jsonl")
    trained = [row for row in records if row["task"] == "scifact"]
    shape = EncoderShape(layers=12, width=384, ffn_width=1536)
    assert trained
    for row in trained:
        shares = long.shares_for(row["relative_flops"], shape, [round(row["mean_length"])])
        kept = [count / row["mean_length"] for count in row["kept_per_layer"]]
        assert max(abs(share - own) for share, own in zip(shares[:-1], kept[:-1], strict=True)) < 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converters warn of each other's ways
def test_every_engine_races_and_has_a_peak(
    script: Any, monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    """Whatever the rivals need is there in the test's environment; of processes of their own, the bench has tests."""
    for module in (script, processes):
        monkeypatch.setattr(module, "alone", here)
    monkeypatch.setattr(script, "DTYPES", ("int8-static",))
    race, memory = recorded(script, monkeypatch, "race,memory", model, tmp_path / "rows.jsonl")
    names = ["hugging face", "onnxruntime, sorted", "thresher dense", "thresher pruned"]
    assert [row["engine"] for row in race["rows"]] == [row["engine"] for row in memory["rows"]] == names
    assert [row["dtype"] for row in race["rows"]] == ["fp32", "int8", "int8-static", "int8-static"]
    assert all(row["texts_per_s"] > 0 for row in race["rows"]) and all(row["peak_mib"] > 1 for row in memory["rows"])
    assert race["rows"][-1]["engine_relative_flops"] < 0.95
    assert str(tmp_path) not in json.dumps([race, memory]), "records are not to say where they were made"
    drawn = importlib.import_module("long_page").table({"race": race, "memory": memory})
    assert "| onnxruntime, int8, sorted by length | " in drawn


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ("speed", "part 'speed' is not one of race, queries, memory, old"),
        ("old", "--old: give the other commit's folder"),
    ],
)
def test_what_cannot_be_measured(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, parts: str, says: str
) -> None:
    with pytest.raises(SystemExit):
        recorded(script, monkeypatch, parts, tmp_path, tmp_path / "rows.jsonl")
    assert says in capsys.readouterr().err
