"""The benchmark from text to answer, tried on a tiny model."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script() -> Any:
    import end_to_end  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    return end_to_end


def test_pairs_are_read_from_tables_and_lines(script: Any, tmp_path: Path) -> None:
    rows = [{"question": "who?", "sentence": "she did", "idx": 3, "label": "entailment"}] * 2
    table, lines = tmp_path / "rows.jsonl.gz", tmp_path / "rows.tsv"
    with gzip.open(table, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    lines.write_text("who?\tshe did\n" * 2, encoding="utf-8")
    assert script.read_pairs(table) == script.read_pairs(lines) == [("who?", "she did")] * 2
    lines.write_text("who?\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="a row without two texts"):
        script.read_pairs(lines)


def test_long_pairs_are_long(script: Any) -> None:
    pairs = script.made_up_pairs(32)
    tokenizer = script.trained_tokenizer([text for pair in pairs for text in pair])
    found = script.long_pairs(pairs, tokenizer, 40)
    lengths = [len(ids) for ids in tokenizer(*zip(*found, strict=True))["input_ids"]]
    assert len(found) == 40 and all(380 <= length < 480 for length in lengths)


def test_every_engine_gets_a_record(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    words = ["end_to_end.py", "qnli", "--device", "cpu", "--tiny", "--count", "24", "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(script, "PIPELINE_BATCHES", (8,))
    script.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    engines = ["pipeline", "thresher-dense", "kernels-dense", "thresher-pruned", "kernels-pruned"]
    assert [row["engine"] for row in rows] == engines
    assert all(row["texts"] == "qnli" and row["texts_per_s"] > 0 and row["commit"] for row in rows)
    flops = {row["engine"]: row["relative_flops"] for row in rows}
    assert flops["pipeline"] == 1.0 and flops["thresher-pruned"] == flops["kernels-pruned"] < flops["thresher-dense"]
    stages = next(row["stages_us"] for row in rows if row["engine"] == "thresher-pruned")
    assert {"tokenize", "tokenize_by_call", "pack", "compute", "hand_out"} <= set(stages)
