from pathlib import Path
from typing import Any

import pytest
import quality
from measuring import keep_rows

from thresher.errors import RunError


def manifest() -> dict[str, Any]:
    def scored(value: float, **more: Any) -> dict[str, Any]:
        return {"metrics": {"accuracy": value, "score": value}, **more}

    made = {"created": "today", "device": "cpu", "versions": {}, "commit": None, "seed": None}
    return {
        "task": {"name": "sst2"},
        "recipe": {"method": "thresher"},
        "quality": {"validation": {"dense": scored(0.9), "pruned": scored(0.85, relative_flops=0.5)}},
        "provenance": {**made, "command": "thresher prune /somewhere/models/mpnet --out /somewhere/runs/a"},
        "quantization": {
            "calibration": {"rows": 4, "source": "training rows"},
            "quality": {
                "split": "validation",
                "rows": 1000,
                "fp32": scored(0.84),
                "int8-static": scored(0.83),
                "fp8": scored(0.835),
                "agreement": 0.97,
            },
            "provenance": {**made, "command": "thresher quantize runs/a --data /somewhere/glue --out runs/a-int8"},
        },
    }


def test_a_quantized_run_says_what_it_lost_without_naming_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quality, "read_manifest", lambda run: manifest())
    row = quality.read(Path("a-int8"))
    scores = [row[name] for name in ("dense", "pruned", "fp32", "int8-static", "fp8")]
    assert scores == [0.9, 0.85, 0.84, 0.83, 0.835]
    assert row["relative_bit_operations"] == 0.5 / 4  # half the products, of 8 x 8 bits where there were 16 x 16
    assert row["command"] == "thresher quantize runs/a --data glue --out runs/a-int8"
    assert row["trained"]["command"] == "thresher prune mpnet --out a"
    monkeypatch.setattr(quality, "FILE", tmp_path / "quality.jsonl")
    keep_rows(quality.FILE, [row], lambda row: row["run"])
    assert quality.table().splitlines()[-1] == (
        "| a-int8 | 1,000 | 90.00 | 85.00 | 84.00 | 83.00 | 83.50 | 97.0% | 0.50 | 8.0x fewer |"
    )
    other = {**row, "run": "b-int8", "int8-static": None}  # of a processor without int8
    keep_rows(quality.FILE, [other], lambda row: row["run"])
    assert "| 84.00 |  | 83.50 | 97.0% |" in quality.table()
    del row["fp8"]  # of a record that was made when there was none
    keep_rows(quality.FILE, [row, {**other, "fp8": None, "int8-static": 0.8}], lambda row: row["run"])
    assert "fp8" not in quality.table()


def test_a_run_that_is_not_quantized_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "read_manifest", lambda run: {"task": {"name": "sst2"}})
    with pytest.raises(RunError, match="is not quantized; thresher quantize"):
        quality.read(Path("a"))
