"""A run for measurements of speed takes its shares from the record that was asked for."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script() -> Any:
    import fitted_run  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    return fitted_run


@pytest.fixture
def records(tmp_path: Path) -> Path:
    file = tmp_path / "records.jsonl"
    kept = {0.26: [20.0, 11.0, 2.0, 2.0], 0.272: [20.0, 15.5, 6.5, 2.0]}
    rows = [
        {"task": task, "target": target, "relative_flops": target, "kept_per_layer": counts}
        for target, counts in kept.items()
        for task in ("scifact", "hotpotqa")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_records_of_a_target(script: Any, records: Path) -> None:
    assert script.recorded_shares(records, "scifact") == [1.0, 0.5, 0.0]
    assert script.recorded_shares(records, "scifact", 0.272) == [1.0, 0.75, 0.25]
    with pytest.raises(SystemExit, match=r"no record of 'scifact' with target 0.3 .* it has: hotpotqa \(0.26\), hot"):
        script.recorded_shares(records, "scifact", 0.3)


def test_a_reranker_whose_folder_does_not_say_so(script: Any, records: Path, tmp_path: Path) -> None:
    from tests.models.sentences import PAIRS, cross_encoder_folder
    from thresher.models.checkpoint import load

    folder, texts = cross_encoder_folder(tmp_path / "model"), tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"query": one, "document": other}) + "\n" for one, other in PAIRS * 4))
    words = f"--model {folder} --record {records} --like scifact --target 0.272 --rerank --texts {texts}"
    script.main([*words.split(), "--protect", "first,first_segment", "--out", str(tmp_path / "run")])
    manifest = load(tmp_path / "run").manifest
    assert manifest["head"]["means"] == "score" and "nothing is trained" in manifest["fitted"]["for"]
    assert manifest["prune"]["protect"] == ["first", "first_segment"]
